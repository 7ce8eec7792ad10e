//! Bytes of objects between sockets and the storage: in pieces, no faster than they are taken, and within a bound for
//! all requests together.

use super::Service;
use super::checksums::{Expected, Sums};
use crate::refusal::Refusal;
use crate::server::BodyOutcome;
use crate::storage::{self, Algorithm, Object, ObjectInfo, Store, Upload};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use s3s::dto::StreamingBlob;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Bytes that one step moves. A request has at most three pieces in memory: one in the socket's buffers, one in the
/// storage, and one between.
pub(crate) const PIECE: usize = 1 << 20;
/// What a permit of the budget stands for, in bytes.
const UNIT: usize = 4096;

/// Memory for pieces, of all requests together. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Semaphore>);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    /// Waits until there is room for so many bytes, at most a piece.
    async fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit, Refusal> {
        self.0.clone().acquire_many_owned(units(bytes)).await.map_err(|_| super::failed())
    }

    /// The room, if it is free now.
    fn try_take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_many_owned(units(bytes)).ok()
    }
}

/// The permits for so many bytes, at most a piece.
fn units(bytes: u64) -> u32 {
    bytes.min(PIECE as u64).div_ceil(UNIT as u64) as u32
}

/// Bytes of a body, copied out of the buffers of the socket: what it holds is what it has room for.
struct Piece {
    bytes: Bytes,
    /// Nothing follows.
    is_last: bool,
    _room: OwnedSemaphorePermit,
}

/// The body of a request, and what the request says of it.
pub(super) struct Incoming {
    pub(super) body: Option<StreamingBlob>,
    pub(super) length: Option<u64>,
    pub(super) expected: Expected,
    /// What to compute beside MD5 and what the request names.
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) outcome: Option<Arc<BodyOutcome>>,
}

/// MD5 and the other checksums, in base64.
pub(super) struct Received {
    pub(super) md5: [u8; 16],
    pub(super) checksums: Vec<(Algorithm, String)>,
}

/// An upload on its way from thread to thread.
struct Work {
    upload: Option<Upload>,
    sums: Sums,
    length: u64,
}

impl Work {
    /// Adds a piece. The upload begins with the first.
    fn add<B>(&mut self, piece: Piece, store: &Store, begin: &mut Option<B>) -> Result<(), Refusal>
    where
        B: FnOnce(&Store) -> storage::Result<Upload>,
    {
        if let Some(begin) = begin.take() {
            self.upload = Some(begin(store)?);
        }
        self.sums.update(&piece.bytes);
        self.length += piece.bytes.len() as u64;
        if let Some(upload) = &mut self.upload {
            upload.write(piece.bytes)?;
        }
        Ok(())
    }
}

/// Writes a body to an upload that `begin` begins, and has `finish` finish it once the body is whole and its checksums
/// are right. The next piece is read from the socket while one is being written.
pub(super) async fn receive<B, F>(
    service: &Service,
    incoming: Incoming,
    begin: B,
    finish: F,
) -> Result<ObjectInfo, Refusal>
where
    B: FnOnce(&Store) -> storage::Result<Upload> + Send + 'static,
    F: FnOnce(Upload, Received) -> storage::Result<ObjectInfo> + Send + 'static,
{
    let Incoming { body, length, mut expected, mut algorithms, outcome } = incoming;
    algorithms.extend(expected.algorithm());
    let mut work = Work { upload: None, sums: Sums::new(&algorithms), length: 0 };
    let mut begin = Some(begin);
    let mut pieces = Gathering { body, left: length, read: Bytes::new() };
    let mut piece = pieces.next(&service.budget).await?;
    while !piece.is_last {
        let step = service.call(move |store| {
            work.add(piece, store, &mut begin)?;
            Ok((work, begin))
        });
        let (stepped, next) = tokio::join!(step, pieces.next(&service.budget));
        (work, begin) = stepped?;
        piece = next?;
    }
    if let Some(outcome) = outcome {
        expected.complete(&outcome.trailers())?;
    }
    let last = service.call(move |store| {
        work.add(piece, store, &mut begin)?;
        if length.is_some_and(|length| length != work.length) {
            return Err(Refusal::new("IncompleteBody", "The body is not as long as the Content-Length header says"));
        }
        let (md5, checksums) = work.sums.finish(&expected)?;
        let upload = work.upload.ok_or_else(super::failed)?;
        Ok(finish(upload, Received { md5, checksums })?)
    });
    last.await
}

/// Reads a body in pieces.
struct Gathering {
    body: Option<StreamingBlob>,
    /// Bytes that follow, if that is known.
    left: Option<u64>,
    /// Bytes of the socket that are in no piece yet.
    read: Bytes,
}

impl Gathering {
    /// The next piece. The last one is read to the end of the body, if its length is known.
    ///
    /// # Errors
    /// `IncompleteBody` if the body is longer than its length; why it could not be read.
    async fn next(&mut self, budget: &Budget) -> Result<Piece, Refusal> {
        let most = self.left.unwrap_or(u64::MAX).min(PIECE as u64) as usize;
        let room = budget.take(most as u64).await?;
        let mut bytes = BytesMut::with_capacity(most);
        let is_last = loop {
            bytes.extend_from_slice(&self.read.split_to(self.read.len().min(most - bytes.len())));
            if bytes.len() == most && self.left != Some(most as u64) {
                break false;
            }
            if !self.read.is_empty() {
                return Err(Refusal::new("IncompleteBody", "The body is longer than the Content-Length header says"));
            }
            // A slice of nothing would keep its buffer.
            self.read = Bytes::new();
            match self.read_on().await? {
                Some(read) => self.read = read,
                None => break true,
            }
        };
        self.left = self.left.map(|left| left - bytes.len() as u64);
        Ok(Piece { bytes: bytes.freeze(), is_last, _room: room })
    }

    /// Bytes of the socket. `None`: the body has ended.
    async fn read_on(&mut self) -> Result<Option<Bytes>, Refusal> {
        let Some(body) = &mut self.body else { return Ok(None) };
        body.next().await.transpose().map_err(fault)
    }
}

fn fault(error: s3s::StdError) -> Refusal {
    match error.downcast::<Refusal>() {
        Ok(refusal) => *refusal,
        Err(_) => Refusal::new("IncompleteBody", "The body could not be read to its end"),
    }
}

/// Bytes with the room that they take.
struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The first piece of a range, read by the thread that opened the object. `None` if there is no room for it now.
///
/// # Errors
/// Those of the volume; `InternalError` if the object is shorter than the range.
pub(super) fn read_first(budget: &Budget, object: &Object, range: &Range<u64>) -> Result<Option<Bytes>, Refusal> {
    match budget.try_take(piece_length(range)) {
        Some(room) => read_piece(object, range, room).map(Some),
        None => Ok(None),
    }
}

/// A range of an object as the body of an answer. The first piece is read before this returns, so that an object that
/// cannot be read is an error and no broken answer.
pub(super) async fn send(
    service: &Service,
    object: Object,
    range: Range<u64>,
    first: Option<Bytes>,
) -> Result<StreamingBlob, Refusal> {
    let object = Arc::new(object);
    let first = match first {
        Some(first) => first,
        None => read(service, &object, &range).await?,
    };
    let (sender, receiver) = mpsc::channel(1);
    let next = range.start + first.len() as u64;
    if next < range.end {
        tokio::spawn(read_ahead(service.clone(), object, next..range.end, sender));
    }
    Ok(StreamingBlob::wrap(Pieces { first: Some(first), rest: receiver }))
}

/// The first piece of a range.
async fn read(service: &Service, object: &Arc<Object>, range: &Range<u64>) -> Result<Bytes, Refusal> {
    let room = service.budget.take(piece_length(range)).await?;
    let (object, range) = (object.clone(), range.clone());
    service.call(move |_| read_piece(&object, &range, room)).await
}

fn piece_length(range: &Range<u64>) -> u64 {
    (range.end - range.start).min(PIECE as u64)
}

fn read_piece(object: &Object, range: &Range<u64>, room: OwnedSemaphorePermit) -> Result<Bytes, Refusal> {
    let length = piece_length(range);
    if length == 0 {
        return Ok(Bytes::new());
    }
    let bytes = object.read(range.start, length as usize)?;
    if (bytes.len() as u64) < length {
        return Err(Refusal::new("InternalError", "The object became shorter while it was read"));
    }
    Ok(Bytes::from_owner(Held { bytes, _room: room }))
}

/// Reads pieces until the range ends or the answer's body is dropped.
async fn read_ahead(
    service: Service,
    object: Arc<Object>,
    mut range: Range<u64>,
    sender: mpsc::Sender<Result<Bytes, Refusal>>,
) {
    while !range.is_empty() {
        // The room in the channel comes first: a client that does not read holds one piece less.
        let Ok(place) = sender.reserve().await else { return };
        let piece = read(&service, &object, &range).await;
        let failed = piece.is_err();
        range.start += piece.as_ref().map_or(0, |bytes| bytes.len() as u64);
        place.send(piece);
        if failed {
            return;
        }
    }
}

struct Pieces {
    first: Option<Bytes>,
    rest: mpsc::Receiver<Result<Bytes, Refusal>>,
}

impl futures_util::Stream for Pieces {
    type Item = Result<Bytes, Refusal>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => self.rest.poll_recv(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathering(frames: &[&Bytes], length: Option<u64>) -> Gathering {
        let frames: Vec<Result<Bytes, Refusal>> = frames.iter().map(|frame| Ok((*frame).clone())).collect();
        let body = StreamingBlob::wrap(futures_util::stream::iter(frames));
        Gathering { body: Some(body), left: length, read: Bytes::new() }
    }

    /// Lengths of the pieces, and their bytes.
    async fn pieces(mut gathering: Gathering) -> Result<(Vec<usize>, Vec<u8>), Refusal> {
        let (budget, mut lengths, mut bytes) = (Budget::new(PIECE), Vec::new(), Vec::new());
        loop {
            let piece = gathering.next(&budget).await?;
            assert!(piece.bytes.len() <= PIECE && budget.0.available_permits() == PIECE / UNIT - piece_units(&piece));
            lengths.push(piece.bytes.len());
            bytes.extend_from_slice(&piece.bytes);
            if piece.is_last {
                return Ok((lengths, bytes));
            }
        }
    }

    fn piece_units(piece: &Piece) -> usize {
        piece._room.num_permits()
    }

    #[tokio::test]
    async fn a_body_comes_in_pieces_of_a_bounded_size() {
        let frame: Bytes = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        let frames = [&frame; 8];
        let length = 8 * frame.len();
        let expected = vec![PIECE, PIECE, length - 2 * PIECE];
        for known in [Some(length as u64), None] {
            let (lengths, bytes) = pieces(gathering(&frames, known)).await.unwrap();
            assert_eq!(lengths, expected);
            assert!(bytes == frame.repeat(8));
        }
    }

    #[tokio::test]
    async fn a_piece_holds_no_buffer_of_the_socket() {
        let frame = Bytes::from(vec![7; 100_000]);
        let slice = frame.slice(10..20);
        let mut gathering = gathering(&[&slice], Some(10));
        let piece = gathering.next(&Budget::new(PIECE)).await.unwrap();
        drop((slice, gathering));
        assert!(piece.is_last && piece.bytes == [7; 10][..] && frame.is_unique());
    }

    #[tokio::test]
    async fn a_body_of_another_length_is_noticed() {
        let frame = Bytes::from_static(b"12345");
        assert_eq!(pieces(gathering(&[&frame], Some(4))).await.unwrap_err().code, "IncompleteBody");
        assert_eq!(pieces(gathering(&[&frame, &frame], Some(5))).await.unwrap_err().code, "IncompleteBody");
        assert_eq!(pieces(gathering(&[&frame], Some(6))).await.unwrap().0, [5]);
        assert_eq!(pieces(gathering(&[], Some(0))).await.unwrap().0, [0]);
        assert_eq!(pieces(gathering(&[&frame; 2], Some(10))).await.unwrap().0, [10]);
    }
}
