//! A socket whose writes fail if the other end reads too slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How slow a client may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    /// Bytes a second of waiting.
    pub(crate) bytes_min: u64,
    /// Waiting that is free.
    pub(crate) grace: Duration,
}

/// Waiting for a client, compared with the bytes that it moved meanwhile.
#[derive(Debug)]
pub(crate) struct Waiting {
    rate: Rate,
    bytes: u64,
    waited: Duration,
    /// Since when the current wait lasts, and its end if nothing moves.
    current: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Waiting {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, bytes: 0, waited: Duration::ZERO, current: None }
    }

    /// Bytes were moved: a wait, if there was one, is over.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some((since, _)) = self.current.take() {
            self.waited += since.elapsed();
        }
    }

    /// Begins a wait, or goes on with it. Ready if the client was too slow.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let allowed = self.allowed();
        let (_, sleep) = self.current.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(allowed))));
        sleep.as_mut().poll(context)
    }

    /// Waiting that is still allowed: the grace, and the time that the bytes so far have earned, less the waiting so far.
    fn allowed(&self) -> Duration {
        let earned = Duration::from_secs(self.bytes / self.rate.bytes_min.max(1));
        (self.rate.grace + earned).saturating_sub(self.waited)
    }
}

/// A socket with a least rate of writing.
pub(crate) struct Stalls<S> {
    socket: S,
    writing: Waiting,
}

impl<S> Stalls<S> {
    pub(crate) fn new(socket: S, rate: Rate) -> Self {
        Self { socket, writing: Waiting::new(rate) }
    }

    fn written(&mut self, context: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match result {
            Poll::Ready(result) => {
                self.writing.moved(*result.as_ref().unwrap_or(&0));
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.writing.poll(context));
                Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalls<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, slices);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(context);
        match flushed {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                ready!(self.writing.poll(context));
                Poll::Ready(Err(io::Error::from(io::ErrorKind::TimedOut)))
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const RATE: Rate = Rate { bytes_min: 1000, grace: Duration::from_secs(5) };

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_ends_the_write() {
        let (near, _far) = tokio::io::duplex(64);
        let begun = Instant::now();
        let error = Stalls::new(near, RATE).write_all(&[0; 1000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_secs(5) && begun.elapsed() < Duration::from_secs(6));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_above_the_least_rate_gets_everything() {
        let (near, mut far) = tokio::io::duplex(1000);
        let reader = tokio::spawn(async move {
            let (mut read, mut buffer) = (0, [0; 500]);
            while read < 60_000 {
                tokio::time::sleep(Duration::from_millis(400)).await;
                read += far.read(&mut buffer).await.unwrap();
            }
        });
        Stalls::new(near, RATE).write_all(&[0; 60_000]).await.unwrap();
        reader.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_below_the_least_rate_is_cut() {
        let (near, mut far) = tokio::io::duplex(1000);
        tokio::spawn(async move {
            let mut buffer = [0; 100];
            while far.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_millis(400)).await;
            }
        });
        let error = Stalls::new(near, RATE).write_all(&[0; 60_000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
