//! Ways for a fuzzer to what is not public.

use crate::connection::Connection;
use crate::exports::Exports;
use crate::handshake::handshake;
use crate::pool::Pool;
use crate::stream::Stream;
use bytes::BytesMut;
use hekate_vdisk::store::memory::Memory;
use hekate_vdisk::{Catalogue, Durability};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Size of the vDisk `d`, which is all that there is.
pub const SIZE: u64 = 1 << 20;
/// Bytes of a conversation that are sent. The socket holds them.
const SENT_MAX: usize = 64 << 10;

static SERVED: LazyLock<io::Result<(Arc<Exports>, Pool)>> = LazyLock::new(|| {
    let catalogue = Catalogue::open(Memory::default().session(1)).map_err(io::Error::other)?;
    catalogue.create("d", SIZE, Durability::Replicated, Vec::new()).map_err(io::Error::other)?;
    let settings = hekate_vdisk::Settings { background: false, ..hekate_vdisk::Settings::default() };
    Ok((Exports::new(catalogue, "fuzz".into(), settings), Pool::start(1)?))
});

/// Serves a client that sends these bytes and nothing else. Returns what it was answered.
///
/// # Errors
/// If there are no sockets or threads.
pub fn conversation(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let (exports, pool) = SERVED.as_ref().map_err(|error| io::Error::other(error.to_string()))?;
    let (mut client, server) = UnixStream::pair()?;
    client.write_all(&bytes[..bytes.len().min(SENT_MAX)])?;
    client.shutdown(std::net::Shutdown::Write)?;
    let reader = std::thread::spawn(move || {
        let mut answered = Vec::new();
        client.read_to_end(&mut answered).map(|_| answered)
    });
    let stream = Arc::new(Stream::new(server.into()));
    let limit = Some(Duration::from_secs(10));
    stream.limit_waits(limit, limit)?;
    let mut buffer = BytesMut::new();
    let served = match handshake(&stream, &mut buffer, exports, None, None) {
        Ok(Some(chosen)) => Connection::new(stream.clone(), chosen, pool.clone()).serve(&mut buffer),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    // A client that breaks the protocol loses its connection, which is all that may happen.
    drop(served);
    stream.shutdown();
    reader.join().unwrap_or_else(|_| Ok(Vec::new()))
}
