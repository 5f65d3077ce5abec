use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

use crate::exit::{Exit, Failure};

/// How long one export may take.
const EXPORT_FOR: Duration = Duration::from_secs(5);

/// Sends spans over OTLP/HTTP, in batches, from a thread of its own. What it cannot send in time
/// is dropped: it never holds a call up.
pub(crate) struct Exporter {
    provider: SdkTracerProvider,
}

impl Exporter {
    /// Starts it. Call it outside of a runtime.
    pub(crate) fn start(endpoint: &str) -> Result<Self, Failure> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint)
            .with_timeout(EXPORT_FOR)
            .build()
            .map_err(|error| {
                Failure::new(Exit::Config, format!("telemetry.otlp_endpoint: {error}"))
                    .hint("write the whole URL, such as http://127.0.0.1:4318/v1/traces")
            })?;
        let resource = Resource::builder().with_service_name("counterfoil").build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    /// What hands spans to it.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        tracing_opentelemetry::layer().with_tracer(self.provider.tracer("counterfoil"))
    }

    /// Sends what is left, within the bound of one export.
    pub(crate) fn finish(self) {
        if let Err(error) = self.provider.shutdown_with_timeout(EXPORT_FOR) {
            tracing::warn!(%error, "the last spans could not be exported");
        }
    }
}
