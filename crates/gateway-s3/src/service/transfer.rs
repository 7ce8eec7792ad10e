//! Bytes of objects between sockets and the storage: in pieces, no faster than they are taken, and within a bound for
//! all requests together.

use super::Service;
use super::checksums::{Expected, Sums};
use crate::refusal::Refusal;
use crate::server::BodyOutcome;
use crate::storage::{self, Algorithm, Object, ObjectInfo, Store, Upload};
use bytes::Bytes;
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

/// Bytes of a body that were read together.
struct Piece {
    bytes: Vec<Bytes>,
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
        for bytes in piece.bytes {
            self.sums.update(&bytes);
            self.length += bytes.len() as u64;
            if let Some(upload) = &mut self.upload {
                upload.write(bytes)?;
            }
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
    let Incoming { mut body, length, mut expected, mut algorithms, outcome } = incoming;
    algorithms.extend(expected.algorithm());
    let mut work = Work { upload: None, sums: Sums::new(&algorithms), length: 0 };
    let mut begin = Some(begin);
    let mut piece = gather(&service.budget, body.as_mut(), length).await?;
    while !piece.is_last {
        let step = service.call(move |store| {
            work.add(piece, store, &mut begin)?;
            Ok((work, begin))
        });
        let (stepped, next) = tokio::join!(step, gather(&service.budget, body.as_mut(), length));
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

/// Reads the next piece of a body. A body that is known to fit into a piece is read to its end.
async fn gather(budget: &Budget, body: Option<&mut StreamingBlob>, length: Option<u64>) -> Result<Piece, Refusal> {
    let room = budget.take(length.unwrap_or(PIECE as u64)).await?;
    let mut piece = Piece { bytes: Vec::new(), is_last: false, _room: room };
    let Some(body) = body else { return Ok(Piece { is_last: true, ..piece }) };
    let most = if length.is_some_and(|length| length <= PIECE as u64) { usize::MAX } else { PIECE };
    let mut read = 0;
    while read < most {
        match body.next().await {
            Some(Ok(bytes)) => {
                read += bytes.len();
                piece.bytes.push(bytes);
            }
            Some(Err(error)) => return Err(fault(error)),
            None => {
                piece.is_last = true;
                break;
            }
        }
    }
    Ok(piece)
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

/// Reads pieces until the range ends or nobody takes them any more.
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
