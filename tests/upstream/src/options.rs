use std::path::PathBuf;

/// Which revisions are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// Both, message by message.
    Both,
    /// The handshake and sessions; `server/discover` is unknown, what a request says of its
    /// revision is not looked at.
    Legacy,
    /// Without a handshake; `initialize` is unknown.
    Modern,
    /// The one of the first message; the other is refused from then on.
    Lock,
}

/// What the program was started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is written down what was received and done.
    pub effects: PathBuf,
    /// Faults by tool: `{"append": {"fault": "die_after", "once": true}, "*": {…}}`. Read anew at
    /// each call; it need not be there.
    pub control: Option<PathBuf>,
    /// Address and port to listen on, port 0 for any. `None`: pipes.
    pub http: Option<String>,
    /// Which revisions.
    pub era: Era,
    /// Over HTTP the older era has sessions.
    pub sessions: bool,
    /// Every answer over HTTP is a stream.
    pub sse: bool,
    /// How many tools a page of the list has.
    pub page: usize,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// What cannot be understood, for people.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let mut options = Self {
            effects: PathBuf::new(),
            control: None,
            http: None,
            era: Era::Both,
            sessions: true,
            sse: false,
            page: usize::MAX,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--effects" => options.effects = PathBuf::from(value()?),
                "--control" => options.control = Some(PathBuf::from(value()?)),
                "--http" => options.http = Some(value()?.clone()),
                "--era" => {
                    options.era = match value()?.as_str() {
                        "both" => Era::Both,
                        "legacy" => Era::Legacy,
                        "modern" => Era::Modern,
                        "lock" => Era::Lock,
                        other => return Err(format!("--era {other}: both, legacy, modern, lock")),
                    }
                }
                "--no-sessions" => options.sessions = false,
                "--sse" => options.sse = true,
                "--page" => {
                    options.page = value()?
                        .parse()
                        .ok()
                        .filter(|page| *page > 0)
                        .ok_or("--page needs a number above 0")?;
                }
                other => return Err(format!("{other} is not known")),
            }
        }
        if options.effects.as_os_str().is_empty() {
            return Err("--effects FILE is needed".to_owned());
        }
        Ok(options)
    }
}
