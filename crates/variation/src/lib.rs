//! How a store's rate varies over time: measuring it, showing it, and planning how many machines a guaranteed rate
//! needs.

pub mod error;
pub mod latency;
pub mod measure;
pub mod plan;
pub mod random;
pub mod series;
pub mod shapes;
pub mod show;
pub mod statistics;
