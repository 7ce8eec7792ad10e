//! A translator in Rust: counts the names that are looked up, and those that are missing.
//!
//! ```text
//! cargo build --release -p count-names
//! hekate plugin install target/release/libcount_names.so --name count-names
//! hekate volume set photos translators count-names:suffix=.h
//! ```

use hekate_plugin_sdk::proto::{Error, NameOp, Op};
use hekate_plugin_sdk::{Event, Layer, Plugin, Request, abi, export_translator};
use std::sync::{PoisonError, RwLock};

struct CountNames {
    layer: Layer,
    suffix: RwLock<Vec<u8>>,
}

impl Plugin for CountNames {
    fn new(layer: Layer) -> Result<Self, String> {
        Ok(Self { layer, suffix: RwLock::new(layer.option("suffix").into_bytes()) })
    }

    fn handle(&self, request: Request, op: Op) {
        let is_counted = match &op {
            Op::Name { op: NameOp::Lookup { name, .. } } => {
                name.as_bytes().ends_with(&self.suffix.read().unwrap_or_else(PoisonError::into_inner))
            }
            _ => false,
        };
        if !is_counted {
            return request.pass();
        }
        let reply = request.next(&op);
        self.layer.count("look-ups", 1);
        if reply == Err(Error::NotFound) {
            self.layer.count("missing", 1);
        }
        request.reply(&reply);
    }

    fn event(&self, event: Event) -> Result<(), String> {
        if event == Event::Reconfigure {
            *self.suffix.write().unwrap_or_else(PoisonError::into_inner) = self.layer.option("suffix").into_bytes();
        }
        Ok(())
    }
}

export_translator!(CountNames {
    summary: c"counts the names that are looked up",
    flags: abi::TRANSPARENT | abi::REPEATABLE,
    ops: c"lookup",
    options: [(c"suffix", c"text", c"", c"only names that end so")],
});
