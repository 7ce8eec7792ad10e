//! Load for an S3 endpoint, any vendor's: threads with a connection each that send one kind of request after the other.
//! Prints one line of JSON: requests and bytes a second, latencies, and the CPU of this process and of the servers.
//!
//! `load ENDPOINT BUCKET WORK [--OPTION VALUE]...`; `options.rs` lists both. The keys are in AWS_ACCESS_KEY_ID and
//! AWS_SECRET_ACCESS_KEY. docs: `bench/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a program for measuring ends at any error")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program of the command line")]

mod connection;
mod cpu;
mod listing;
mod options;
mod report;
mod signing;
mod work;

use options::{Options, Work};
use report::Report;
use std::time::Instant;

fn main() {
    let options = Options::of_arguments();
    match options.work {
        Work::Bucket => work::make_bucket(&options),
        Work::List => listing::run(&options),
        _ => print(&options),
    }
}

fn print(options: &Options) {
    let plan = work::Plan::new(options);
    let (cpu, begun) = (cpu::Cpu::now(&options.pids), Instant::now());
    let done = plan.run();
    let seconds = begun.elapsed().as_secs_f64();
    let report = Report::new(options, done, seconds, &cpu, &cpu::Cpu::now(&options.pids));
    println!("{}", report.json());
}
