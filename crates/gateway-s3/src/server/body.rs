//! The body of a request on its way from the socket to the service: not too slow, decoded, and compared with its hash.

use super::chunks::{Chunks, Trailers};
use super::counters::Tally;
use super::signature::{ChunkSigner, Payload};
use super::stalls::{Rate, Waiting};
use crate::refusal::Refusal;
use crate::service::{Expected, Sums};
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use parking_lot::Mutex;
use ring::digest::{Context as Digest, SHA256};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The outcome of reading the body of a request, for code that does not read it itself.
#[derive(Default)]
pub(crate) struct BodyOutcome {
    /// Why reading the body failed.
    fault: Mutex<Option<Refusal>>,
    trailers: Mutex<Trailers>,
    /// The rest of the body that was not read.
    rest: Mutex<Option<Incoming>>,
}

impl BodyOutcome {
    /// Why the body could not be read, if that is so.
    pub(crate) fn fault(&self) -> Option<Refusal> {
        self.fault.lock().clone()
    }

    /// The trailers of a body that was read to its end.
    pub(crate) fn trailers(&self) -> Trailers {
        self.trailers.lock().clone()
    }

    /// What of the body was not read.
    pub(super) fn take_rest(&self) -> Option<Incoming> {
        self.rest.lock().take()
    }
}

/// How the bytes are checked.
enum Check {
    None,
    Hash { digest: Box<Digest>, expected: [u8; 32] },
    Chunks(Box<Chunks>),
    Ended,
}

/// The body of a request.
pub(crate) struct RequestBody {
    incoming: Option<Incoming>,
    check: Check,
    /// Checksums of a body that the service gets whole. It compares those of objects itself, on other threads.
    sums: Option<(Sums, Expected)>,
    decoded: VecDeque<Bytes>,
    waiting: Waiting,
    outcome: Arc<BodyOutcome>,
    tally: Arc<Tally>,
}

impl RequestBody {
    /// `length`: of the body after decoding. `signer` is there if the request was signed.
    ///
    /// # Errors
    /// `MissingContentLength` if the body is in chunks of unknown length; `AccessDenied` if signed chunks have no
    /// signature before them.
    pub(super) fn new(
        incoming: Incoming,
        payload: &Payload,
        signer: Option<ChunkSigner>,
        length: Option<u64>,
        rate: Rate,
        tally: Arc<Tally>,
    ) -> Result<Self, Refusal> {
        let check = match payload {
            Payload::Unsigned => Check::None,
            Payload::Hash(expected) => Check::Hash { digest: Box::new(Digest::new(&SHA256)), expected: *expected },
            Payload::Chunked { signed, trailers } => {
                let signer = match (signed, signer) {
                    (true, None) => return Err(Refusal::new("AccessDenied", "Signed chunks need a signed request")),
                    (true, signer) => signer,
                    (false, _) => None,
                };
                let length = length.ok_or_else(super::front::missing_length)?;
                Check::Chunks(Box::new(Chunks::new(signer, *trailers, length)))
            }
        };
        let (decoded, outcome) = (VecDeque::new(), Arc::default());
        let waiting = Waiting::new(rate);
        Ok(Self { incoming: Some(incoming), check, sums: None, decoded, waiting, outcome, tally })
    }

    /// Compares the body with the checksums that the request has for it.
    pub(super) fn compare(&mut self, expected: Expected) {
        let algorithms: Vec<_> = expected.algorithm().into_iter().collect();
        self.sums = Some((Sums::new(&algorithms), expected));
    }

    pub(super) fn outcome(&self) -> Arc<BodyOutcome> {
        self.outcome.clone()
    }

    fn received(&mut self, bytes: Bytes) -> Result<(), Refusal> {
        self.waiting.moved(bytes.len());
        match &mut self.check {
            Check::None | Check::Ended => self.decoded.push_back(bytes),
            Check::Hash { digest, .. } => {
                digest.update(&bytes);
                self.decoded.push_back(bytes);
            }
            Check::Chunks(chunks) => self.decoded.extend(chunks.push(bytes)?),
        }
        Ok(())
    }

    fn ended(&mut self) -> Result<(), Refusal> {
        self.incoming = None;
        match std::mem::replace(&mut self.check, Check::Ended) {
            Check::None | Check::Ended => Ok(()),
            Check::Hash { digest, expected } if Digest::clone(&digest).finish().as_ref() == expected => Ok(()),
            Check::Hash { .. } => Err(Refusal::new(
                "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.",
            )),
            Check::Chunks(chunks) => {
                *self.outcome.trailers.lock() = chunks.end()?;
                Ok(())
            }
        }
    }

    fn compared(&mut self) -> Result<(), Refusal> {
        let Some((sums, mut expected)) = self.sums.take() else { return Ok(()) };
        expected.complete(&self.outcome.trailers())?;
        sums.finish(&expected).map(|_| ())
    }

    /// Reads from the socket until there are bytes of the object, or the body has ended.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Refusal>> {
        loop {
            if let Some(bytes) = self.decoded.pop_front() {
                if let Some((sums, _)) = &mut self.sums {
                    sums.update(&bytes);
                }
                return Poll::Ready(Ok(Some(bytes)));
            }
            let Some(incoming) = &mut self.incoming else {
                return Poll::Ready(self.compared().map(|()| None));
            };
            match Pin::new(incoming).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.received(bytes)?;
                    }
                }
                Poll::Ready(Some(Err(_))) => {
                    self.incoming = None;
                    let message = "The body ended before the number of bytes in the Content-Length header";
                    return Poll::Ready(Err(Refusal::new("IncompleteBody", message)));
                }
                Poll::Ready(None) => self.ended()?,
                Poll::Pending => {
                    std::task::ready!(self.waiting.poll(context));
                    self.incoming = None;
                    let message = "The body was not read from the socket within the timeout period";
                    return Poll::Ready(Err(Refusal::new("RequestTimeout", message)));
                }
            }
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Refusal;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        match std::task::ready!(self.poll_bytes(context)) {
            Ok(Some(bytes)) => {
                self.tally.received(bytes.len());
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Ok(None) => Poll::Ready(None),
            Err(refusal) => {
                *self.outcome.fault.lock() = Some(refusal.clone());
                self.check = Check::Ended;
                self.decoded.clear();
                Poll::Ready(Some(Err(refusal)))
            }
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        *self.outcome.rest.lock() = self.incoming.take();
    }
}
