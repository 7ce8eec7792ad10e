//! Measurements of a process: latency histograms, and a page of counters, gauges and histograms in the format of
//! Prometheus (OpenMetrics 1.0 text), served by HTTP or printed.

mod histogram;
mod listen;
mod nbd;
mod page;
mod process;
mod s3;

pub use histogram::{Histogram, Latencies};
pub use listen::listen;
pub use nbd::{NbdCounters, VdiskCounters};
pub use page::{CONTENT_TYPE, Page};
pub use process::add_process;
pub use s3::{S3Counters, S3OperationCounters};
