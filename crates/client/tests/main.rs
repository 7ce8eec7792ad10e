//! The library against real servers in this process. One program, so that the servers are linked once and tests that wait
//! run beside each other.

mod between;
mod locks;
mod retries;
mod servers;
mod spread;
mod volume;
