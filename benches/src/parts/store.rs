use crate::{
    Error,
    callers::{CALLERS, Callers, Commits, transactions},
    keys::{Kind, Series},
    parts::Bench,
    report::{Figure, Report},
};

/// The store alone, with callers in this process.
pub(crate) fn measure(bench: &Bench, report: &mut Report) -> Result<(), Error> {
    println!("\nThe store, {CALLERS} callers");
    super::growth::runtime()?.block_on(async {
        let kinds = [Commits::One, Commits::Two];
        let mut stores = Vec::new();
        for commits in kinds {
            let folder = bench.new_folder(&format!("store-{commits:?}"))?;
            let path = folder.join("receipts.db");
            let callers = Callers::open(&path, Series::new(Kind::TimeOrdered)?).await?;
            stores.push((commits, path, callers, Vec::new(), 0, 0));
        }
        for _ in 0..bench.scale.rounds {
            for (commits, path, callers, rounds, batches, calls) in &mut stores {
                let (before, used) = (transactions(path)?, callers.used());
                rounds.push(callers.run(*commits, CALLERS, bench.scale.until()).await?);
                *batches += transactions(path)? - before;
                *calls += callers.used() - used;
            }
        }
        for (commits, _, _, rounds, batches, calls) in &stores {
            let name = commits.name();
            report.figure(&Figure::new(name, rounds)?);
            let steps = match commits {
                Commits::One => *calls,
                Commits::Two => 2 * *calls,
            };
            #[allow(clippy::cast_precision_loss, reason = "a figure for reading")]
            let mean = steps as f64 / (*batches).max(1) as f64;
            report.quantity(
                format!("{name}: steps in one transaction"),
                mean,
                "on average",
            );
        }
        Ok(())
    })
}
