//! The common interface of the client's layers: each layer of a volume is a [`Translator`], and a volume is a chain
//! of them.
//!
//! `handle` is the whole interface: match the ops of interest and pass the others to `next`. Ops are data, so a layer
//! needs no method for each op. A chain ends in the fixed layers: distribute over replicate over transport.

use hekate_proto::{Attr, Error, Op, Reply, Result};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Parameters that accompany an op through the layers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// Reply only when the change is on stable storage of every replica.
    pub durable: bool,
    /// Set when the caller gives up (a signal). An op that waits for a server then fails with `Unavailable`.
    pub interrupt: Option<&'a AtomicBool>,
    /// The caller gives up at this time.
    pub deadline: Option<Instant>,
    /// Receives the attributes of the directory after a change of its names, if that needs no additional message.
    pub directory_after: Option<&'a OnceLock<Attr>>,
}

impl Context<'_> {
    /// A context for changes that must be on stable storage when they return.
    pub const DURABLE: Context<'static> =
        Context { durable: true, interrupt: None, deadline: None, directory_after: None };

    /// True if the caller gave up.
    pub fn interrupted(&self) -> bool {
        self.interrupt.is_some_and(|flag| flag.load(Ordering::Relaxed))
            || self.deadline.is_some_and(|deadline| hekate_threads::now() >= deadline)
    }
}

/// A layer that sees every op of a volume.
pub trait Translator: Send + Sync {
    /// Answers the op, or passes it on to the next layer, changed or not.
    fn handle(&self, context: &Context, op: Op) -> Result<Reply>;
}

/// One layer of a volume's graph, as the volume's record names it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct LayerSpec {
    /// Its name in the registry.
    pub name: String,
}

/// Constructor of a layer above `next`.
pub type MakeLayer = fn(&LayerSpec, Arc<dyn Translator>) -> Result<Arc<dyn Translator>>;

/// Builds a volume's chain. The first layer sees ops first.
///
/// # Errors
/// `Invalid` if a layer is unknown, with the names of the known ones; or the error of a layer's constructor.
pub fn build(
    layers: &[LayerSpec],
    registry: &[(&str, MakeLayer)],
    bottom: Arc<dyn Translator>,
) -> Result<Arc<dyn Translator>> {
    layers.iter().rev().try_fold(bottom, |next, layer| {
        let Some((_, make)) = registry.iter().find(|(name, _)| *name == layer.name) else {
            let known: Vec<_> = registry.iter().map(|(name, _)| *name).collect();
            return Err(Error::invalid(format!(
                "no translator is called {:?}; there are: {}",
                layer.name,
                known.join(", ")
            )));
        };
        make(layer, next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hekate_proto::VolumeOp;

    struct Bottom;
    impl Translator for Bottom {
        fn handle(&self, _: &Context, _: Op) -> Result<Reply> {
            Ok(Reply::Done)
        }
    }

    struct Refuse(Arc<dyn Translator>);
    impl Translator for Refuse {
        fn handle(&self, context: &Context, op: Op) -> Result<Reply> {
            match op {
                Op::Volume { .. } => Err(Error::ReadOnly),
                other => self.0.handle(context, other),
            }
        }
    }

    #[test]
    fn the_first_layer_sees_an_op_first_and_unknown_layers_are_refused_by_name() {
        let registry: [(&str, MakeLayer); 1] = [("refuse", |_, next| Ok(Arc::new(Refuse(next))))];
        let spec = |name: &str| [LayerSpec { name: name.into() }];
        let graph = build(&spec("refuse"), &registry, Arc::new(Bottom)).unwrap();
        let op = Op::Volume { op: VolumeOp::StatFs };
        assert_eq!(graph.handle(&Context::default(), op), Err(Error::ReadOnly));
        let error = build(&spec("nonesuch"), &registry, Arc::new(Bottom)).err().unwrap();
        assert!(error.to_string().contains("nonesuch") && error.to_string().contains("refuse"));
    }
}
