//! What a live graph looks like: for people, as JSON, and as a picture.

use crate::statistics::LayerCounts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A live graph of one program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GraphReport {
    /// Name of the volume.
    pub volume: String,
    /// Session of the program.
    pub session: u64,
    /// Process id of the program.
    pub process: u32,
    /// What the program is: `mount at /mnt`, `s3`.
    pub program: String,
    /// Number of the change of the volume's graph that is in use.
    pub change: u64,
    /// The translators, the first one sees ops first.
    pub layers: Vec<LayerReport>,
    /// Graphs that were replaced and still have ops under way.
    pub replaced: usize,
    /// Why the last change was refused.
    pub refused: Option<String>,
    /// The layers below: a line each.
    pub fixed: Vec<FixedLayer>,
    /// The partitions of the volume, as this program knows them.
    pub partitions: Vec<PartitionReport>,
}

/// A translator of a live graph.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerReport {
    pub name: String,
    pub options: BTreeMap<String, String>,
    pub is_transparent: bool,
    #[serde(flatten)]
    pub counts: LayerCounts,
    /// The translator's own counters.
    pub counters: BTreeMap<String, String>,
}

/// A layer that every graph has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FixedLayer {
    pub name: String,
    /// What it does for this volume.
    pub text: String,
}

/// A partition, as a client knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartitionReport {
    pub number: u32,
    pub epoch: u64,
    /// Server of the leader.
    pub leader: u32,
    /// Servers of the members.
    pub members: Vec<u32>,
}

impl GraphReport {
    /// The graph for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let (volume, session, process, program) = (&self.volume, self.session, self.process, &self.program);
        let _ = writeln!(
            out,
            "volume {volume}   {program}   process {process}   session {session}   change {}",
            self.change
        );
        for layer in &self.layers {
            let options: Vec<String> = layer.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let counts = &layer.counts;
            let _ = writeln!(
                out,
                "  {} {}\n    {} ops, {} errors; mean {:.1} us, p50 {:.1} us, p99 {:.1} us with the layers below",
                layer.name,
                options.join(" "),
                counts.ops,
                counts.errors,
                counts.mean_us,
                counts.p50_us,
                counts.p99_us
            );
            for (name, value) in &layer.counters {
                let _ = writeln!(out, "    {name}: {value}");
            }
        }
        for layer in &self.fixed {
            let _ = writeln!(out, "  {}: {}", layer.name, layer.text);
        }
        for partition in &self.partitions {
            let PartitionReport { number, epoch, leader, members } = partition;
            let _ = writeln!(out, "    partition {number}: server {leader} leads servers {members:?}, epoch {epoch}");
        }
        if self.replaced > 0 {
            let _ = writeln!(out, "  {} earlier graphs still have ops under way", self.replaced);
        }
        if let Some(refused) = &self.refused {
            let _ = writeln!(out, "  a change was refused: {refused}");
        }
        out
    }

    /// The graph as a picture (SVG 1.1).
    pub fn svg(&self) -> String {
        const WIDTH: usize = 640;
        const ROW: usize = 70;
        let boxes: Vec<(String, String)> = self
            .layers
            .iter()
            .map(|layer| {
                let options: Vec<String> =
                    layer.options.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let counts = &layer.counts;
                let line = format!(
                    "{} ops, {} errors, p50 {:.1} us, p99 {:.1} us",
                    counts.ops, counts.errors, counts.p50_us, counts.p99_us
                );
                (format!("{} {}", layer.name, options.join(" ")), line)
            })
            .chain(self.fixed.iter().map(|layer| (layer.name.clone(), layer.text.clone())))
            .collect();
        let height = 40 + boxes.len() * ROW;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<text x=\"20\" y=\"24\">{}</text>\n",
            escaped(&format!("volume {} · {} · change {}", self.volume, self.program, self.change))
        );
        for (at, (name, line)) in boxes.iter().enumerate() {
            let y = 40 + at * ROW;
            let _ = writeln!(
                out,
                "<rect x=\"20\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"#eef3f8\" stroke=\"#345\"/>\
                 <text x=\"32\" y=\"{}\" font-weight=\"bold\">{}</text><text x=\"32\" y=\"{}\">{}</text>",
                WIDTH - 40,
                ROW - 20,
                y + 20,
                escaped(name),
                y + 40,
                escaped(line)
            );
            if at + 1 < boxes.len() {
                let (from, to) = (y + ROW - 20, y + ROW);
                let _ = writeln!(out, "<line x1=\"320\" y1=\"{from}\" x2=\"320\" y2=\"{to}\" stroke=\"#345\"/>");
            }
        }
        out.push_str("</svg>\n");
        out
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_is_shown_with_its_options_and_counters() {
        let layer = LayerReport {
            name: "cache".into(),
            options: [("entries".to_string(), "5".to_string())].into(),
            counters: [("hits".to_string(), "7 < 8".to_string())].into(),
            ..LayerReport::default()
        };
        let fixed = FixedLayer { name: "distribute".into(), text: "4 partitions & more".into() };
        let report =
            GraphReport { volume: "v".into(), layers: vec![layer], fixed: vec![fixed], ..GraphReport::default() };
        let text = report.text();
        assert!(text.contains("cache entries=5\n") && text.contains("hits: 7 < 8") && text.contains("distribute: 4"));
        let svg = report.svg();
        assert!(svg.contains("4 partitions &amp; more") && svg.ends_with("</svg>\n"));
        assert_eq!(serde_json::from_str::<GraphReport>(&serde_json::to_string(&report).unwrap()).unwrap(), report);
    }
}
