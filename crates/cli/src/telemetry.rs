use tracing_subscriber::{EnvFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::{
    config::Config,
    exit::{Exit, Failure},
};

/// What `telemetry.log` asks for.
pub(crate) fn filter(config: &Config) -> Result<EnvFilter, Failure> {
    config.log.parse().map_err(|error| {
        Failure::new(Exit::Config, format!("telemetry.log: {error}"))
            .hint("write a level, or targets with levels: `info,counterfoil_engine=debug`")
    })
}

/// What must be kept until the program ends, so that spans still on their way are exported.
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    exporter: Option<crate::otlp::Exporter>,
}

impl Telemetry {
    /// Logs to standard error, and exports spans if that is configured.
    pub(crate) fn start(config: &Config) -> Result<Self, Failure> {
        let filter = filter(config)?;
        // What cannot be written is dropped: saying so on the same stream would panic.
        let lines = tracing_subscriber::fmt::layer()
            .log_internal_errors(false)
            .with_writer(std::io::stderr);
        let lines: Box<dyn tracing_subscriber::Layer<_> + Send + Sync> = if config.log_json {
            Box::new(lines.json())
        } else {
            use std::io::IsTerminal as _;
            Box::new(lines.with_ansi(std::io::stderr().is_terminal()))
        };
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        let taken = |error: tracing_subscriber::util::TryInitError| {
            Failure::new(Exit::Failure, error.to_string())
        };
        #[cfg(feature = "otlp")]
        {
            let exporter = config
                .otlp_endpoint
                .as_deref()
                .map(crate::otlp::Exporter::start)
                .transpose()?;
            let layer = exporter.as_ref().map(crate::otlp::Exporter::layer);
            subscriber.with(layer).try_init().map_err(taken)?;
            Ok(Self { exporter })
        }
        #[cfg(not(feature = "otlp"))]
        {
            subscriber.try_init().map_err(taken)?;
            Ok(Self {})
        }
    }

    /// Sends what is still on its way.
    #[cfg_attr(
        not(feature = "otlp"),
        allow(clippy::unused_self, reason = "nothing to send")
    )]
    pub(crate) fn finish(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = self.exporter {
            exporter.finish();
        }
    }
}
