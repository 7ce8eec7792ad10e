//! Every decoder with the properties that must hold for any input: one function a target, `fn(&[u8])`, which panics if
//! a property does not hold.
//!
//! `cargo test` runs each over `fuzz/corpus`, `fuzz/regressions` and 2,500 mutations of both (`tests/stable.rs`);
//! `make fuzz` runs the same functions under libFuzzer (`fuzz/`). The properties, besides the absence of panics:
//!
//! - a value has exactly one encoding, where the format promises that;
//! - a decoder allocates no more than a few times the bytes of its input ([`allocation`]);
//! - a decoder terminates: the runners limit the time.
//!
//! No shipped crate depends on this one (`tidy.toml`).

// A panic is how a target reports a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod allocation;
mod block;
mod brick;
mod conversation;
mod corpus;
mod etcd;
mod generate;
mod journal;
mod link;
pub mod mutate;
mod s3;
mod text;
mod values;
mod variation;

pub use corpus::{corpus_of, folder, regressions_of, write_corpus};

/// A decoder with its properties.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name in `fuzz/`.
    pub name: &'static str,
    /// Panics if a property does not hold for these bytes.
    pub run: fn(&[u8]),
    /// Inputs made by the encoders: the content of `fuzz/corpus`.
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
    /// An op with its ids, as a client sends it.
    request = values::request, values::request_seeds;
    /// An answer.
    reply = values::reply, values::reply_seeds;
    /// What a server sends to a session without being asked.
    notification = values::notification, values::notification_seeds;
    /// An error.
    error = values::error, values::error_seeds;
    /// A record of a partition's log.
    record = values::record, values::record_seeds;
    /// One change of a record.
    change = values::change, values::change_seeds;
    /// A key of the index.
    key = values::key, values::key_seeds;
    /// A value of the index; the first byte chooses its type.
    index_value = values::index_value, values::index_value_seeds;
    /// The body of a frame; the first byte chooses its kind.
    frame_body = conversation::frame_body, conversation::frame_body_seeds;
    /// Everything that a server receives from a client, from the first byte of the connection on.
    server_conversation = conversation::server, conversation::server_seeds;
    /// Everything that a client receives from a server.
    client_conversation = conversation::client, conversation::client_seeds;
    /// A packet between servers.
    packet = link::packet, link::packet_seeds;
    /// A sequence of packets received by one link.
    link_received = link::received, link::received_seeds;
    /// A message between replicas.
    envelope = values::envelope, values::envelope_seeds;
    /// The header of a journal's segment.
    segment_header = journal::segment_header, journal::segment_header_seeds;
    /// The header of a journal's record.
    record_header = journal::record_header, journal::record_header_seeds;
    /// The body of a mark.
    mark = journal::mark, journal::mark_seeds;
    /// A journal of records that a replica may have written, with damage.
    journal = journal::of_own_records, journal::journal_seeds;
    /// A journal of records with right checksums and any body, with damage.
    journal_any = journal::of_any_records, journal::journal_seeds;
    /// The bookkeeping that a checkpoint writes beside the entries.
    meta = brick::meta, brick::meta_seeds;
    /// The record of the checksums of 64 blocks.
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
    /// A value of the coordinator, under any key.
    coordinator_record = text::coordinator_record, text::coordinator_record_seeds;
    /// An answer of etcd's gateway, as each of the messages.
    etcd_answer = etcd::answer, etcd::answer_seeds;
    /// A stream of changes from etcd's gateway.
    etcd_stream = etcd::stream, etcd::stream_seeds;
    /// A request whose S3 signature is read and verified.
    s3_signature = s3::signature, s3::signature_seeds;
    /// A body in aws-chunked.
    s3_chunks = s3::chunks, s3::chunks_seeds;
    /// Everything that a block door receives from a client of its protocol, NBD.
    nbd_conversation = block::conversation, block::conversation_seeds;
    /// The header of an append to a vDisk's log; zeros fill it up.
    vdisk_append = block::append, block::append_seeds;
    /// A record of a vDisk; the first byte chooses its type.
    vdisk_record = block::record, block::record_seeds;
    /// A request to the control interface.
    control_request = text::control_request, text::control_request_seeds;
    /// A request of the kernel's FUSE driver.
    fuse_request = conversation::fuse_request, conversation::fuse_request_seeds;
    /// A recording of `hekate variation measure`.
    variation_recording = variation::recording, variation::recording_seeds;
    /// A series of either kind: a recording, or a table.
    variation_series = variation::series, variation::series_seeds;
    /// Latencies of either kind.
    variation_latencies = variation::latencies, variation::latencies_seeds;
}
