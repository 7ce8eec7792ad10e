//! The kinds of translators that a program has: what they are called, where they run, which options they take.

use crate::options::{OptionSpec, Options};
use crate::{Next, Translator};
use hekate_proto::map::{LAYERS_MAX, LayerSpec};
use hekate_proto::{Error, Result};
use std::sync::Arc;

/// Where a translator runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// In each program that uses the volume: mounts, doors, the library.
    Client,
    /// In the servers, on each request.
    Leader,
}

/// Makes a translator above `next`.
pub type MakeLayer = Arc<dyn Fn(&Options, Next) -> Result<Arc<dyn Translator>> + Send + Sync>;

/// A kind of translator.
#[derive(Clone)]
pub struct LayerKind {
    pub name: String,
    /// A sentence for people.
    pub summary: String,
    /// Further text for `hekate translator show`; may be empty.
    pub help: String,
    pub side: Side,
    /// It changes neither ops nor replies, so that the suites of the file system pass with it.
    pub is_transparent: bool,
    /// A graph may have several of them.
    pub is_repeatable: bool,
    pub options: Vec<OptionSpec>,
    /// It takes options that the table does not list, and checks them itself.
    pub is_open: bool,
    /// `None` for [`Side::Leader`].
    pub make: Option<MakeLayer>,
}

/// Looks for a kind that is not built in, by name.
pub type FindKind = Arc<dyn Fn(&str) -> Result<Option<LayerKind>> + Send + Sync>;

/// All kinds that a program has.
#[derive(Clone, Default)]
pub struct Catalogue {
    built_in: Vec<LayerKind>,
    installed: Option<FindKind>,
}

impl Catalogue {
    pub fn new(built_in: Vec<LayerKind>) -> Self {
        Self { built_in, installed: None }
    }

    /// Adds kinds that are looked for when a graph names them.
    #[must_use]
    pub fn with_installed(self, find: FindKind) -> Self {
        Self { installed: Some(find), ..self }
    }

    /// The kinds that are built in.
    pub fn built_in(&self) -> &[LayerKind] {
        &self.built_in
    }

    /// The kind with this name.
    ///
    /// # Errors
    /// `Invalid` with the names that there are; the error of a library that cannot be used.
    pub fn find(&self, name: &str) -> Result<LayerKind> {
        if let Some(kind) = self.built_in.iter().find(|kind| kind.name == name) {
            return Ok(kind.clone());
        }
        if let Some(kind) = self.installed.as_ref().map(|find| find(name)).transpose()?.flatten() {
            return Ok(kind);
        }
        let known: Vec<_> = self.built_in.iter().map(|kind| kind.name.as_str()).collect();
        Err(Error::invalid(format!(
            "no translator is called {name:?}; built in are {}; `hekate plugin list` shows the libraries that are \
             installed here; one in Python is python:translator=NAME",
            known.join(", ")
        )))
    }

    /// The layers of a graph, each with its kind and its checked options.
    ///
    /// # Errors
    /// `Invalid` if a name, an option or the order is wrong; the text names the fix.
    pub fn check(&self, layers: &[LayerSpec]) -> Result<Vec<(LayerKind, Options)>> {
        if layers.len() > LAYERS_MAX {
            return Err(Error::invalid(format!("a graph has at most {LAYERS_MAX} translators, not {}", layers.len())));
        }
        let checked = layers.iter().map(|layer| {
            let kind = self.find(&layer.name)?;
            let options = Options::check(&kind.name, &kind.options, kind.is_open, &layer.options)?;
            Ok((kind, options))
        });
        let checked: Vec<_> = checked.collect::<Result<_>>()?;
        for (at, (kind, _)) in checked.iter().enumerate() {
            let name = &kind.name;
            if !kind.is_repeatable && checked[..at].iter().any(|(above, _)| above.name == *name) {
                return Err(Error::invalid(format!("{name} is there twice; one of them is enough: remove the other")));
            }
            let below = checked[at..].iter().find(|(below, _)| below.side == Side::Client);
            if let (Side::Leader, Some((below, _))) = (kind.side, below) {
                return Err(Error::invalid(format!(
                    "{name} runs in the servers, below all translators of clients: name it after {}",
                    below.name
                )));
            }
        }
        Ok(checked)
    }
}
