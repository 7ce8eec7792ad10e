//! The page: families of samples as OpenMetrics 1.0 text, which Prometheus reads.

use crate::histogram::Latencies;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The page's content type in HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;

/// Samples that are collected for one request.
#[derive(Debug, Default)]
pub struct Page(Vec<Family>);

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    samples: Vec<(Labels, Sample)>,
}

#[derive(Debug)]
enum Sample {
    Counter(f64),
    Gauge(f64),
    Latencies(Latencies),
}

impl Page {
    /// Adds a value that only increases. The page appends `_total` to the name, as OpenMetrics requires.
    pub fn counter(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.add(name, help, labels, Sample::Counter(value));
    }

    /// Adds a value that increases and decreases.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, labels: Labels, value: f64) {
        self.add(name, help, labels, Sample::Gauge(value));
    }

    /// Adds latencies, in seconds.
    pub fn latencies(&mut self, name: &'static str, help: &'static str, labels: Labels, found: Latencies) {
        self.add(name, help, labels, Sample::Latencies(found));
    }

    /// All samples of a name have the same kind.
    fn add(&mut self, name: &'static str, help: &'static str, labels: Labels, sample: Sample) {
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push((labels, sample)),
            None => self.0.push(Family { name, help, samples: vec![(labels, sample)] }),
        }
    }

    /// The page as text.
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &registry);
        out
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        for family in &self.0 {
            let kind = match family.samples.first() {
                Some((_, Sample::Counter(_))) => MetricType::Counter,
                Some((_, Sample::Latencies(_))) => MetricType::Histogram,
                _ => MetricType::Gauge,
            };
            let mut described = encoder.encode_descriptor(family.name, family.help, None, kind)?;
            for (labels, sample) in &family.samples {
                match labels.is_empty() {
                    true => sample.encode(&mut described)?,
                    false => sample.encode(&mut described.encode_family(labels)?)?,
                }
            }
        }
        Ok(())
    }
}

impl Sample {
    fn encode(&self, encoder: &mut MetricEncoder) -> Result<(), std::fmt::Error> {
        match self {
            Sample::Counter(value) => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
            Sample::Gauge(value) => encoder.encode_gauge(value),
            Sample::Latencies(found) => {
                encoder.encode_histogram::<NoLabelSet>(found.sum.as_secs_f64(), found.count(), &found.powers(), None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Histogram;
    use std::time::Duration;

    #[test]
    fn a_page_is_openmetrics_text() {
        let histogram = Histogram::default();
        histogram.add(Duration::from_nanos(1500));
        let mut page = Page::default();
        page.gauge("up_seconds", "Since the start", Vec::new(), 1.5);
        page.counter("failures", "Ops that failed", vec![("op", "read".into())], 3.0);
        page.counter("failures", "Ops that failed", vec![("op", "a \"name\"\n".into())], 4.0);
        page.latencies("took_seconds", "How long", vec![("op", "read".into())], histogram.read());
        let text = page.text();
        for line in [
            "# HELP up_seconds Since the start",
            "# TYPE up_seconds gauge",
            "up_seconds 1.5",
            "# TYPE failures counter",
            "failures_total{op=\"read\"} 3.0",
            "failures_total{op=\"a \\\"name\\\"\\n\"} 4.0",
            "# TYPE took_seconds histogram",
            "took_seconds_sum{op=\"read\"} 0.0000015",
            "took_seconds_count{op=\"read\"} 1",
            "took_seconds_bucket{le=\"0.000001024\",op=\"read\"} 0",
            "took_seconds_bucket{le=\"0.000002048\",op=\"read\"} 1",
            "took_seconds_bucket{le=\"+Inf\",op=\"read\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in:\n{text}");
        }
        assert_eq!(text.lines().filter(|line| line.contains("TYPE failures")).count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }
}
