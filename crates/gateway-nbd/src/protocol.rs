//! Numbers and layouts of the NBD protocol. All integers are big-endian.

use bytes::{Buf, Bytes, BytesMut};

/// What a server says first.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// What follows it, and begins each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins the reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of the server, and of the client.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

/// Bytes of an option's data. Names are at most 4,096 bytes.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest name of an export.
pub const NAME_BYTES_MAX: usize = 4096;
/// Bytes that a request reads or writes with data.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Size of a request's header.
pub const REQUEST_BYTES: usize = 28;

/// Options of the handshake.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Kinds of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Errors of requests.
pub mod error {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
    pub const ENOTSUP: u32 = 95;
    pub const ESHUTDOWN: u32 = 108;
}

/// Kinds of chunks of structured replies.
pub mod chunk {
    pub const DONE: u16 = 1;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// The metadata context that is offered, and its number.
pub const ALLOCATION: &str = "base:allocation";
pub const ALLOCATION_ID: u32 = 1;
/// State of an extent without data: a hole that reads as zeros.
pub const STATE_HOLE_ZERO: u32 = 3;

/// A violation of the protocol; the connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    /// One that is not known.
    Other(u16),
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: Command,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    /// Reads a header of [`REQUEST_BYTES`] bytes.
    ///
    /// # Errors
    /// If it does not begin with the magic, or announces more data than any request may have.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, Violation> {
        if bytes.len() < REQUEST_BYTES {
            return Err(Violation("a request is cut off".into()));
        }
        if bytes.get_u32() != REQUEST_MAGIC {
            return Err(Violation("a request does not begin with its magic".into()));
        }
        let (flags, command) = (bytes.get_u16(), bytes.get_u16());
        let command = match command {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Other(other),
        };
        let (cookie, offset, length) = (bytes.get_u64(), bytes.get_u64(), bytes.get_u32());
        if command == Command::Write && length > PAYLOAD_BYTES_MAX {
            return Err(Violation(format!("a write announces {length} bytes, at most {PAYLOAD_BYTES_MAX} are taken")));
        }
        Ok(Self { flags, command, cookie, offset, length })
    }

    /// Bytes of data that follow the header.
    pub fn payload(&self) -> usize {
        if self.command == Command::Write { self.length as usize } else { 0 }
    }

    /// True if the request has this flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A cursor over an option's data.
pub struct OptionData(Bytes);

impl OptionData {
    pub fn new(data: Bytes) -> Self {
        Self(data)
    }

    pub fn u16(&mut self) -> Result<u16, Violation> {
        if self.0.len() < 2 { Err(cut()) } else { Ok(self.0.get_u16()) }
    }

    pub fn u32(&mut self) -> Result<u32, Violation> {
        if self.0.len() < 4 { Err(cut()) } else { Ok(self.0.get_u32()) }
    }

    /// A length and so many bytes of text.
    pub fn text(&mut self) -> Result<String, Violation> {
        let length = self.u32()? as usize;
        if length > NAME_BYTES_MAX || length > self.0.len() {
            return Err(Violation("a name in an option is too long".into()));
        }
        text(&self.0.split_to(length))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn cut() -> Violation {
    Violation("the data of an option is cut off".into())
}

/// Text of an export's name.
pub fn text(bytes: &[u8]) -> Result<String, Violation> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Violation("a name is not UTF-8".into()))
}

/// Appends the reply to an option.
pub fn put_option_reply(out: &mut BytesMut, option: u32, reply: u32, data: &[u8]) {
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&reply.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends a reply without data.
pub fn put_simple_reply(out: &mut BytesMut, cookie: u64, error: u32) {
    out.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// Appends the header of the only, or last, chunk of a structured reply with `length` bytes.
pub fn put_chunk(out: &mut BytesMut, cookie: u64, kind: u16, length: usize) {
    out.extend_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&chunk::DONE.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

/// Appends a structured error.
pub fn put_error_chunk(out: &mut BytesMut, cookie: u64, error: u32, message: &str) {
    let message = &message.as_bytes()[..message.floor_char_boundary(1024)];
    put_chunk(out, cookie, chunk::ERROR, 6 + message.len());
    out.extend_from_slice(&error.to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_a_violation(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Request::parse(&bytes);
        }

        #[test]
        fn any_data_of_an_option_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut data = OptionData::new(bytes.into());
            while data.text().is_ok() && data.u16().is_ok() && !data.is_empty() {}
        }
    }

    #[test]
    fn a_write_may_not_announce_more_than_the_limit() {
        let header = |command: u16, length: u32| {
            let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend_from_slice(&[0, 0]);
            bytes.extend_from_slice(&command.to_be_bytes());
            bytes.extend_from_slice(&[0; 16]);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes
        };
        assert!(Request::parse(&header(1, PAYLOAD_BYTES_MAX)).is_ok());
        assert!(Request::parse(&header(1, PAYLOAD_BYTES_MAX + 1)).is_err());
        assert_eq!(Request::parse(&header(6, u32::MAX)).unwrap().payload(), 0);
    }
}
