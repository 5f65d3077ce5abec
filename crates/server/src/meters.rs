use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Bounds of the latency histograms, in seconds.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// Bounds of the histograms of counts.
const SIZES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The process's recorder, installed with the first application. `None` if somebody else has
/// installed another one: `/metrics` is then empty, and the figures are theirs.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    RECORDER
        .get_or_init(|| {
            let builder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
                .ok()?
                .set_buckets_for_metric(Matcher::Suffix("_size".to_owned()), &SIZES)
                .ok()?;
            let recorder = builder.build_recorder();
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder).ok()?;
            describe();
            Some(handle)
        })
        .as_ref()
}

fn describe() {
    metrics::describe_counter!(
        "counterfoil_calls_total",
        "Keyed calls, by outcome: ran, replayed, or the code of the refusal."
    );
    metrics::describe_counter!(
        "counterfoil_http_requests_total",
        "HTTP requests, by method, route template and status."
    );
    metrics::describe_gauge!(
        "counterfoil_http_in_flight",
        "HTTP requests being answered."
    );
    metrics::describe_gauge!(
        "counterfoil_store_queue_depth",
        "Callers waiting for the writer."
    );
    metrics::describe_gauge!(
        "counterfoil_store_reservations",
        "Reservations whose completion is not recorded yet, in this process."
    );
    metrics::describe_gauge!(
        "counterfoil_operations_unresolved",
        "Unresolved operations in the store."
    );
}
