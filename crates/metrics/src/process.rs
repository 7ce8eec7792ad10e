//! Resource use of this process, under the names that Prometheus clients use.

use crate::Page;

/// Adds CPU time, memory, descriptors and threads. Values that cannot be read are left out.
pub fn add_process(page: &mut Page) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    if let Some(kib) = field("VmRSS") {
        page.gauge("process_resident_memory_bytes", "Resident memory", Vec::new(), kib * 1024.0);
    }
    if let Some(threads) = field("Threads") {
        page.gauge("process_threads", "Threads", Vec::new(), threads);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open file descriptors", Vec::new(), open.count() as f64);
    }
    if let Some(seconds) = cpu_seconds() {
        page.counter("process_cpu_seconds", "CPU time, user and system", Vec::new(), seconds);
    }
}

/// CPU time of all threads, including ended ones.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which may contain spaces: state is field 3, utime 14, stime 15 (proc_pid_stat(5)).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    // USER_HZ is 100 on all platforms of Linux.
    Some(ticks / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_how_it_is() {
        let mut page = Page::default();
        add_process(&mut page);
        let text = page.text();
        for name in
            ["process_resident_memory_bytes ", "process_threads ", "process_open_fds ", "process_cpu_seconds_total "]
        {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            assert!(line.parse::<f64>().unwrap() >= 0.0, "{name}{line}");
        }
    }
}
