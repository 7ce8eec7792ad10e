//! Every decoder, with what must hold for any bytes: one function a target, `fn(&[u8])`, that panics if it does not.
//!
//! `cargo test` runs each over `fuzz/corpus`, `fuzz/regressions` and 10,000 mutations of both (`tests/stable.rs`);
//! `make fuzz` runs the same functions under libFuzzer (`fuzz/`). What must hold, beyond that nothing panics:
//!
//! - what decodes is the only encoding of its value, where the format promises that;
//! - a decoder allocates no more than a few times the bytes that it was given ([`allocation`]);
//! - it comes to an end: the runners limit the time.
//!
//! Nothing that is shipped depends on this crate (`tidy.toml`).

// To panic is how a target says that something does not hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod allocation;
mod brick;
mod conversation;
mod corpus;
mod generate;
mod journal;
mod link;
pub mod mutate;
mod text;
mod values;
mod variation;

pub use corpus::{corpus_of, folder, regressions_of, write_corpus};

/// A decoder with its properties.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name in `fuzz/`.
    pub name: &'static str,
    /// Panics if something does not hold for these bytes.
    pub run: fn(&[u8]),
    /// Bytes from real encoders: what `fuzz/corpus` holds.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($(#[$meta:meta])* $name:ident = $run:path, $seeds:path;)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name, seeds: $seeds }),*];

        $($(#[$meta])* pub fn $name(bytes: &[u8]) {
            $run(bytes);
        })*
    };
}

targets! {
    /// One op.
    op = values::op, values::op_seeds;
    /// One op on its way.
    request = values::request, values::request_seeds;
    /// An answer.
    reply = values::reply, values::reply_seeds;
    /// An error.
    error = values::error, values::error_seeds;
    /// A record of a partition's log.
    record = values::record, values::record_seeds;
    /// One change of it.
    change = values::change, values::change_seeds;
    /// A key of the index.
    key = values::key, values::key_seeds;
    /// A value of the index; the first byte says of which type.
    index_value = values::index_value, values::index_value_seeds;
    /// The body of a frame; the first byte says of which kind.
    frame_body = conversation::frame_body, conversation::frame_body_seeds;
    /// What a client may say to a server, from the first byte of the connection on.
    server_conversation = conversation::server, conversation::server_seeds;
    /// What a server may say to a client.
    client_conversation = conversation::client, conversation::client_seeds;
    /// A packet between servers.
    packet = link::packet, link::packet_seeds;
    /// Packets, one after the other, to a link.
    link_received = link::received, link::received_seeds;
    /// What a replica says to another.
    envelope = values::envelope, values::envelope_seeds;
    /// The header of a journal's segment.
    segment_header = journal::segment_header, journal::segment_header_seeds;
    /// The header of a journal's record.
    record_header = journal::record_header, journal::record_header_seeds;
    /// The body of a mark.
    mark = journal::mark, journal::mark_seeds;
    /// A journal of records that a brick may have written, and damage.
    journal = journal::of_own_records, journal::journal_seeds;
    /// A journal of records with right checksums and any body, and damage.
    journal_any = journal::of_any_records, journal::journal_seeds;
    /// What a checkpoint says beside the entries.
    meta = brick::meta, brick::meta_seeds;
    /// The checksums of 64 blocks.
    checksum_group = brick::checksum_group, brick::checksum_group_seeds;
    /// Records that replicas make, appended to an open brick.
    brick_record = brick::own_records, brick::record_seeds;
    /// Any well-formed records, appended to an open brick.
    brick_record_any = brick::any_records, brick::record_seeds;
    /// `brick.toml`.
    brick_toml = text::brick_toml, text::brick_toml_seeds;
    /// `life.toml`.
    life_toml = text::life_toml, text::life_toml_seeds;
    /// A volume's map.
    map = text::map, text::map_seeds;
    /// A value of the coordinator, whatever its key.
    coordinator_record = text::coordinator_record, text::coordinator_record_seeds;
    /// A request to the control interface.
    control_request = text::control_request, text::control_request_seeds;
    /// A request of the kernel.
    fuse_request = conversation::fuse_request, conversation::fuse_request_seeds;
    /// A recording of `hekate variation measure`.
    variation_recording = variation::recording, variation::recording_seeds;
    /// A series of either kind: a recording, or a table.
    variation_series = variation::series, variation::series_seeds;
    /// Latencies of either kind.
    variation_latencies = variation::latencies, variation::latencies_seeds;
}
