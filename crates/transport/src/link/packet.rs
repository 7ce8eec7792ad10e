//! What two ends of a link send each other. `docs/format/wire.md` has the byte map.

use bytes::Bytes;
use hekate_proto::{Wire, wire_enum, wire_newtype, wire_struct};

/// Bytes of a packet without those of its message, at most.
pub const PACKET_OVERHEAD: usize = 64;

wire_newtype! {
    /// One process of a server: drawn at random when it starts, so never the same again.
    pub struct Boot(u64);
    /// Which message of its direction in its generation, from 1; 0 is none.
    pub struct MessageNumber(u64);
}

wire_struct! {
    /// What one end puts into a generation: its process, and how many generations that has given up. An attempt is in
    /// one generation at most.
    #[derive(Copy, Hash, PartialOrd, Ord)]
    pub struct Attempt {
        /// The process.
        pub boot: Boot,
        /// From 0.
        pub number: u64,
    }

    /// A run of messages between two processes, the same value at both ends.
    #[derive(Copy, Hash)]
    pub struct Generation {
        /// Of the server with the lower number.
        pub lower: Attempt,
        /// Of the other.
        pub higher: Attempt,
    }

    /// What goes over the medium.
    pub struct Packet {
        /// Who sends.
        pub from: Attempt,
        /// Whom the sender takes the receiver for, if it has heard of one.
        pub to: Option<Attempt>,
        /// What it says.
        pub body: Body,
    }
}

wire_enum! {
    /// What a packet says.
    pub enum Body {
        /// The sender is in a generation with another attempt than the receiver's, and asks if that one has gone.
        1 = Doubt,
        /// The sender is in no generation and would begin one with the receiver.
        2 = Open,
        /// All messages up to this one have arrived.
        3 = Received { until: MessageNumber },
        /// A message, and what has arrived.
        4 = Message { until: MessageNumber, number: MessageNumber, bytes: Bytes },
    }
}

impl Packet {
    /// Appends all of the encoding but the bytes of the message, which come last in it and are returned: they may be
    /// large, and whoever writes to a socket need not copy them.
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
