//! What a process counts of itself: latency histograms, and the page of counters, gauges and histograms that Prometheus
//! reads (OpenMetrics 1.0 text), by HTTP or printed.

mod histogram;
mod listen;
mod page;
mod process;

pub use histogram::{Histogram, Latencies};
pub use listen::listen;
pub use page::{CONTENT_TYPE, Page};
pub use process::add_process;
