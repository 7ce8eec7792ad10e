//! The packets that two ends of a link exchange. `docs/format/wire.md` has the byte map.

use bytes::Bytes;
use hekate_proto::{Wire, wire_enum, wire_newtype, wire_struct};

/// Most bytes of a packet beside its message.
pub const PACKET_OVERHEAD: usize = 64;

wire_newtype! {
    /// One process of a server: a random number drawn when it starts.
    pub struct Boot(u64);
    /// Number of a message in its direction and generation, from 1. 0 stands for none.
    pub struct MessageNumber(u64);
}

wire_struct! {
    /// What one end contributes to a generation: its process, and a counter of the attempts of that process. An
    /// attempt is used in at most one generation.
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct Attempt {
        /// The process.
        pub boot: Boot,
        /// Number of the attempt in its process, from 0.
        pub number: u64,
    }

    /// Name of a generation, the same value at both ends.
    #[derive(Copy, Hash)]
    pub struct Generation {
        /// Attempt of the server with the lower number.
        pub lower: Attempt,
        /// Attempt of the server with the higher number.
        pub higher: Attempt,
    }

    pub struct Packet {
        /// The sender's attempt.
        pub from: Attempt,
        /// The receiver's attempt as the sender knows it, if it knows one.
        pub to: Option<Attempt>,
        pub body: Body,
    }
}

wire_enum! {
    pub enum Body {
        /// The sender is paired with an attempt of another process of the receiver's server, and asks whether that
        /// process has ended.
        1 = Doubt,
        /// The sender has no generation and proposes one with the receiver.
        2 = Open,
        /// All messages up to this one have arrived.
        3 = Received { until: MessageNumber },
        /// A message, and an acknowledgement as in `Received`.
        4 = Message { until: MessageNumber, number: MessageNumber, bytes: Bytes },
    }
}

impl Packet {
    /// Appends the encoding without the bytes of the message, and returns those. They come last in the encoding and
    /// may be long; a caller that writes to a socket need not copy them.
    pub fn put_head(&self, out: &mut Vec<u8>) -> Bytes {
        self.from.put(out);
        self.to.put(out);
        match &self.body {
            Body::Message { until, number, bytes } => {
                out.push(4);
                until.put(out);
                number.put(out);
                (bytes.len() as u32).put(out);
                bytes.clone()
            }
            other => {
                other.put(out);
                Bytes::new()
            }
        }
    }
}
