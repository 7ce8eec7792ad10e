//! `trace`: one line on standard error for every op and its outcome. It sees the ops as the layer above sends them.

use hekate_graph::{Context, LayerSpec, Translator};
use hekate_proto::{Op, Reply, Result};
use hekate_threads::{elapsed, now};
use std::sync::Arc;

/// Prints every op, its duration and its outcome.
pub struct Trace {
    next: Arc<dyn Translator>,
}

impl Trace {
    /// Constructor for the registry. The layer has no parameters.
    ///
    /// # Errors
    /// Never: `Result` is part of [`hekate_graph::MakeLayer`].
    pub fn make(_: &LayerSpec, next: Arc<dyn Translator>) -> Result<Arc<dyn Translator>> {
        Ok(Arc::new(Self { next }))
    }
}

impl Translator for Trace {
    fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
        let label = op.label();
        let begun = now();
        let answer = self.next.handle(context, op);
        let outcome = match &answer {
            Ok(_) => "done".to_string(),
            Err(error) => error.to_string(),
        };
        eprintln!("trace: {label} {} us: {outcome}", elapsed(begun).as_micros());
        answer
    }
}
