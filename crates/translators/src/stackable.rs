//! Translators that a volume's graph may have, above the fixed layers. `docs/translators.md` lists their options, which
//! come from the tables here.

mod clients;
mod details;
mod fault;
mod io_stats;
mod negative_lookup;
#[cfg(test)]
mod tests;
mod trace;

use hekate_graph::catalogue::MakeLayer;
use hekate_graph::{Catalogue, LayerKind, Next, OptionSpec, Options, Side, Translator};
use hekate_proto::Result;
use hekate_proto::map::READ_ONLY;
use std::sync::Arc;

/// All translators that are part of the program.
pub fn built_in() -> Catalogue {
    Catalogue::new(vec![
        negative_lookup::kind(),
        trace::kind(),
        io_stats::kind(),
        fault::kind(),
        LayerKind {
            side: Side::Leader,
            make: None,
            ..kind(
                READ_ONLY,
                "refuses each change, also of clients that do not know it; reads change times of access",
                Vec::new(),
            )
        },
    ])
}

/// A kind that changes ops or replies, of which a graph has one.
fn kind(name: &str, summary: &str, options: Vec<OptionSpec>) -> LayerKind {
    LayerKind {
        name: name.into(),
        summary: summary.into(),
        help: String::new(),
        side: Side::Client,
        is_transparent: false,
        is_repeatable: false,
        options,
        is_open: false,
        make: None,
    }
}

/// A constructor for a kind.
fn made_by<T: Translator + 'static>(make: fn(&Options, Next) -> Result<T>) -> Option<MakeLayer> {
    Some(Arc::new(move |options: &Options, next: Next| Ok(Arc::new(make(options, next)?) as Next)))
}
