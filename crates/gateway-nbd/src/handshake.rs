//! The handshake: options until one chooses an export.

use crate::clients::Clients;
use crate::exports::{Exports, Use};
use crate::protocol::*;
use crate::stream::Stream;
use bytes::{Buf, Bytes, BytesMut};
use hekate_vdisk::Disk;
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;

/// Options of one connection.
const OPTIONS_MAX: usize = 1000;

/// What a client has chosen.
pub struct Chosen {
    pub export: Use,
    /// Replies have chunks.
    pub is_structured: bool,
    /// The client may ask for the status of blocks.
    pub has_allocation: bool,
    /// The client may only read, or the export is never written.
    pub is_read_only: bool,
}

struct Handshake<'a> {
    stream: &'a Stream,
    buffer: &'a mut BytesMut,
    exports: &'a Arc<Exports>,
    tls: Option<Arc<ServerConfig>>,
    clients: Option<&'a dyn Clients>,
    is_secure: bool,
    /// Why the client may use nothing.
    refused: Option<String>,
    /// The client may only read.
    reads_only: bool,
    is_structured: bool,
    /// The export for which the client has chosen `base:allocation`.
    allocation: Option<String>,
    no_zeroes: bool,
}

/// Speaks with a client until it has chosen an export. `None`: it has gone, or does not want one. `tls`: a client has to
/// begin TLS first; `clients` says which of them may go on.
///
/// # Errors
/// Those of the connection; `InvalidData` for a violation of the protocol.
pub fn handshake(
    stream: &Stream,
    buffer: &mut BytesMut,
    exports: &Arc<Exports>,
    tls: Option<Arc<ServerConfig>>,
    clients: Option<&dyn Clients>,
) -> io::Result<Option<Chosen>> {
    let mut hello = BytesMut::new();
    hello.extend_from_slice(&INIT_MAGIC.to_be_bytes());
    hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    stream.send(&hello)?;
    let mut talk = Handshake {
        stream,
        buffer,
        exports,
        is_secure: tls.is_none(),
        tls,
        clients,
        refused: None,
        reads_only: false,
        is_structured: false,
        allocation: None,
        no_zeroes: false,
    };
    let Some(mut flags) = talk.take(4)? else { return Ok(None) };
    let flags = flags.get_u32();
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(violation("the client's flags are not those of fixed newstyle"));
    }
    talk.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
    for _ in 0..OPTIONS_MAX {
        let Some(mut head) = talk.take(16)? else { return Ok(None) };
        if head.get_u64() != OPTION_MAGIC {
            return Err(violation("an option does not begin with its magic"));
        }
        let (number, length) = (head.get_u32(), head.get_u32());
        if length > OPTION_BYTES_MAX {
            // Without its data the connection cannot go on.
            let _ = talk.reply(number, reply::ERR_TOO_BIG, b"an option has at most 64 KiB");
            return Err(violation("an option is too long"));
        }
        let Some(data) = talk.take(length as usize)? else { return Ok(None) };
        match talk.option(number, data)? {
            Next::Option => {}
            Next::Chosen(export) => {
                let has_allocation = talk.allocation.is_some() && talk.is_structured;
                let is_read_only = talk.reads_only || export.disk.is_read_only();
                return Ok(Some(Chosen { export, is_structured: talk.is_structured, has_allocation, is_read_only }));
            }
            Next::End => return Ok(None),
        }
    }
    Err(violation("too many options"))
}

enum Next {
    Option,
    Chosen(Use),
    End,
}

pub fn violation(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl Handshake<'_> {
    /// The next bytes; `None` at the end of the connection.
    fn take(&mut self, count: usize) -> io::Result<Option<Bytes>> {
        while self.buffer.len() < count {
            if !self.stream.receive(self.buffer, true)? {
                return Ok(None);
            }
        }
        Ok(Some(self.buffer.split_to(count).freeze()))
    }

    fn reply(&self, option: u32, reply: u32, data: &[u8]) -> io::Result<()> {
        let mut out = BytesMut::new();
        put_option_reply(&mut out, option, reply, data);
        self.stream.send(&out)
    }

    fn option(&mut self, number: u32, data: Bytes) -> io::Result<Next> {
        if !self.is_secure && !matches!(number, option::STARTTLS | option::ABORT) {
            if number == option::EXPORT_NAME {
                return Err(violation("the client has not begun TLS"));
            }
            self.reply(number, reply::ERR_TLS_REQD, b"begin TLS first: nbds:// or tls-creds")?;
            return Ok(Next::Option);
        }
        if let Some(why) = self.refused.as_ref().filter(|_| number != option::ABORT) {
            if number == option::EXPORT_NAME {
                return Err(violation(why.clone()));
            }
            self.reply(number, reply::ERR_POLICY, why.as_bytes())?;
            return Ok(Next::Option);
        }
        match number {
            option::EXPORT_NAME => return self.export_name(&data),
            option::ABORT => {
                let _ = self.reply(number, reply::ACK, &[]);
                return Ok(Next::End);
            }
            option::STARTTLS => self.start_tls(&data)?,
            option::LIST if data.is_empty() => self.list()?,
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.is_structured = true;
                self.reply(number, reply::ACK, &[])?;
            }
            option::LIST | option::STRUCTURED_REPLY => self.reply(number, reply::ERR_INVALID, b"it has no data")?,
            option::INFO | option::GO => return self.info(number, data),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(number, data)?,
            _ => self.reply(number, reply::ERR_UNSUP, b"this option is not supported")?,
        }
        Ok(Next::Option)
    }

    fn start_tls(&mut self, data: &Bytes) -> io::Result<()> {
        let number = option::STARTTLS;
        let Some(settings) = self.tls.clone().filter(|_| !self.is_secure && data.is_empty()) else {
            let why: &[u8] =
                if self.tls.is_none() { b"this address has no TLS" } else { b"TLS has begun, or data follows" };
            let code = if self.tls.is_none() { reply::ERR_UNSUP } else { reply::ERR_INVALID };
            return self.reply(number, code, why);
        };
        if !self.buffer.is_empty() {
            return Err(violation("bytes follow the request for TLS"));
        }
        self.reply(number, reply::ACK, &[])?;
        self.stream.begin_tls(settings)?;
        self.is_secure = true;
        if let Some(clients) = self.clients {
            let certificate = self.stream.certificate().unwrap_or_default();
            match clients.admit(&certificate, self.stream.address()) {
                Ok(reads_only) => self.reads_only = reads_only,
                Err(error) => {
                    log::info!("NBD: a client is refused: {error}");
                    self.refused = Some(error.to_string());
                }
            }
        }
        // What was chosen before counts no more.
        self.is_structured = false;
        self.allocation = None;
        Ok(())
    }

    fn list(&self) -> io::Result<()> {
        let all = match self.exports.list() {
            Ok(all) => all,
            Err(error) => return self.reply(option::LIST, reply::ERR_UNKNOWN, error.to_string().as_bytes()),
        };
        let mut out = BytesMut::new();
        for (name, description) in all {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            data.extend_from_slice(description.as_bytes());
            put_option_reply(&mut out, option::LIST, reply::SERVER, &data);
        }
        put_option_reply(&mut out, option::LIST, reply::ACK, &[]);
        self.stream.send(&out)
    }

    fn export_name(&mut self, data: &Bytes) -> io::Result<Next> {
        let name = text(data).map_err(|violated| violation(violated.0))?;
        // This option has no reply for a name that cannot be opened but the end.
        let export = self.exports.open(&name).map_err(|error| violation(error.to_string()))?;
        let mut out = BytesMut::new();
        out.extend_from_slice(&export.disk.size().to_be_bytes());
        out.extend_from_slice(&self.flags_of(&export.disk).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        self.stream.send(&out)?;
        Ok(Next::Chosen(export))
    }

    fn info(&mut self, number: u32, data: Bytes) -> io::Result<Next> {
        let asked = parse_info(data);
        let (name, wanted) = match asked {
            Ok(asked) => asked,
            Err(violated) => {
                self.reply(number, reply::ERR_INVALID, violated.0.as_bytes())?;
                return Ok(Next::Option);
            }
        };
        let export = match self.exports.open(&name) {
            Ok(export) => export,
            Err(error) => {
                self.reply(number, reply::ERR_UNKNOWN, error.to_string().as_bytes())?;
                return Ok(Next::Option);
            }
        };
        let mut out = BytesMut::new();
        let mut tell = |kind: u16, value: &[u8]| {
            put_option_reply(&mut out, number, reply::INFO, &[&kind.to_be_bytes(), value].concat());
        };
        let size = export.disk.size().to_be_bytes();
        tell(info::EXPORT, &[&size[..], &self.flags_of(&export.disk).to_be_bytes()].concat());
        let sizes = [1u32, 4096, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes).concat();
        tell(info::BLOCK_SIZE, &sizes);
        if wanted.contains(&info::NAME) {
            tell(info::NAME, export.disk.name().as_bytes());
        }
        if wanted.contains(&info::DESCRIPTION) {
            tell(info::DESCRIPTION, format!("Hekate vDisk {}", export.disk.name()).as_bytes());
        }
        put_option_reply(&mut out, number, reply::ACK, &[]);
        self.stream.send(&out)?;
        if number == option::INFO {
            return Ok(Next::Option);
        }
        // Contexts of another export count for nothing.
        if self.allocation.as_ref().is_some_and(|chosen| *chosen != name) {
            self.allocation = None;
        }
        Ok(Next::Chosen(export))
    }

    fn contexts(&mut self, number: u32, data: Bytes) -> io::Result<()> {
        let (name, queries) = match parse_contexts(data) {
            Ok(asked) => asked,
            Err(violated) => return self.reply(number, reply::ERR_INVALID, violated.0.as_bytes()),
        };
        if !self.is_structured {
            return self.reply(number, reply::ERR_INVALID, b"ask for structured replies first");
        }
        let is_list = number == option::LIST_META_CONTEXT;
        let matches = |query: &String| query == ALLOCATION || (is_list && query == "base:");
        let is_chosen = queries.iter().any(matches) || (is_list && queries.is_empty());
        if !is_list {
            self.allocation = is_chosen.then_some(name);
        }
        if is_chosen {
            let id = if is_list { 0 } else { ALLOCATION_ID };
            let data = [&id.to_be_bytes()[..], ALLOCATION.as_bytes()].concat();
            self.reply(number, reply::META_CONTEXT, &data)?;
        }
        self.reply(number, reply::ACK, &[])
    }

    fn flags_of(&self, disk: &Disk) -> u16 {
        // A flush covers the writes of all connections, so a client may have several.
        let mut flags = flag::HAS_FLAGS | flag::CAN_MULTI_CONN | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        if self.reads_only || disk.is_read_only() {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if self.is_structured {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

fn parse_info(data: Bytes) -> Result<(String, Vec<u16>), Violation> {
    let mut data = OptionData::new(data);
    let name = data.text()?;
    let count = data.u16()?;
    let wanted = (0..count).map(|_| data.u16()).collect::<Result<Vec<_>, _>>()?;
    if data.is_empty() { Ok((name, wanted)) } else { Err(Violation("data follows the option".into())) }
}

fn parse_contexts(data: Bytes) -> Result<(String, Vec<String>), Violation> {
    let mut data = OptionData::new(data);
    let name = data.text()?;
    let count = data.u32()?;
    let mut queries = Vec::new();
    for _ in 0..count {
        queries.push(data.text()?);
    }
    if data.is_empty() { Ok((name, queries)) } else { Err(Violation("data follows the option".into())) }
}
