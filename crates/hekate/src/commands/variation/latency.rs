//! `hekate variation latency`.

use crate::cli::{Cli, VariationLatency};
use crate::failure::Failure;
use crate::output;
use hekate_variation::latency::{self, Part};
use hekate_variation::measure::picture::time;
use std::time::Duration;

pub fn latency(cli: &Cli, options: &VariationLatency) -> Result<(), Failure> {
    let parts = parts(options)?;
    let count: usize = parts.iter().map(|part| part.count).sum();
    let wait_for = match options.wait.as_str() {
        "all" => count,
        "quorum" => count / 2 + 1,
        "first" => 1,
        number => {
            let wrong = |_| Failure::usage(format!("--wait {number}: write all, quorum, first or a number"));
            number.parse().map_err(wrong)?
        }
    };
    let whole = latency::whole(&parts, wait_for)?;
    if cli.json {
        output::json(&serde_json::to_value(&whole).unwrap_or_default());
        return Ok(());
    }
    println!("{count} servers, independent of each other; a request waits for {wait_for} of them\n");
    let row = |quantile: &latency::Quantile| {
        let shown = |us: f64| time(Duration::from_nanos((us * 1e3) as u64));
        let note = if quantile.is_founded { "" } else { "fewer than 10 measured operations were slower" };
        let share = format!("{} %", (quantile.share * 1e4).round() / 1e2);
        vec![share, shown(quantile.part_us), shown(quantile.whole_us), note.into()]
    };
    output::table(
        &["NO LONGER IN", "ONE SERVER", "REQUEST", "NOTE"],
        &whole.quantiles.iter().map(row).collect::<Vec<_>>(),
    );
    println!("\n{:.1} % of the requests take longer than 1 % of one server's do", whole.slower_than_part_p99 * 100.0);
    Ok(())
}

/// Each file with the number of its servers.
fn parts(options: &VariationLatency) -> Result<Vec<Part>, Failure> {
    let (files, servers) = (&options.files, &options.servers);
    if servers.len() != files.len() {
        let text =
            format!("{} numbers of servers for {} files; give --servers for each file", servers.len(), files.len());
        return Err(Failure::usage(text));
    }
    let part = |(file, count): (&std::path::PathBuf, &usize)| {
        Ok(Part { name: file.display().to_string(), latencies: latency::read(file)?, count: *count })
    };
    files.iter().zip(servers).map(part).collect()
}
