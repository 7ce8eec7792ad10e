//! Bodies in aws-chunked: chunks with a length, a signature where they are signed, and trailers behind the last. Pure,
//! and bounded: bytes of a chunk pass through, short ones in one copy, and only lines are kept, up to [`LINE_MAX`].
//!
//! Source: "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks" of the Amazon
//! S3 API reference.

use super::signature::ChunkSigner;
use crate::refusal::Refusal;
use bytes::{Buf, Bytes, BytesMut};
use ring::digest::{Context, SHA256};

/// Longest line of a chunk's head or of a trailer, in bytes.
const LINE_MAX: usize = 1024;
/// Bytes of a chunk that are copied if they are fewer. A slice keeps the whole buffer of the socket in memory, and is
/// longer itself than the shortest chunks.
const SLICE_MIN: usize = 4096;
/// Most trailers, the signature included.
const TRAILERS_MAX: usize = 16;
/// Longest chunk that is signed. Nothing of it can be trusted before its end. An unsigned one may be a whole body.
pub const SIGNED_CHUNK_MAX: u64 = 16 << 20;

/// Names and values of the trailers. Names in lower case.
pub type Trailers = Vec<(String, String)>;

/// The decoder of one body.
pub struct Chunks {
    signer: Option<ChunkSigner>,
    has_trailers: bool,
    /// Bytes of `x-amz-decoded-content-length` that have not been read yet.
    expected: u64,
    state: State,
    line: Vec<u8>,
    /// Of the current chunk, if it is signed.
    chunk: Option<(Context, String)>,
    trailers: Trailers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Data {
        left: u64,
    },
    /// The line break behind a chunk's bytes.
    DataEnd,
    Trailers,
    End,
}

impl Chunks {
    /// `length`: of the body after decoding.
    pub fn new(signer: Option<ChunkSigner>, has_trailers: bool, length: u64) -> Self {
        Self {
            signer,
            has_trailers,
            expected: length,
            state: State::Head,
            line: Vec::new(),
            chunk: None,
            trailers: Trailers::new(),
        }
    }

    /// Decodes the next bytes of the body, and returns those of the object.
    ///
    /// # Errors
    /// A refusal if they are malformed, too many, or not signed as they should be.
    pub fn push(&mut self, mut input: Bytes) -> Result<Vec<Bytes>, Refusal> {
        let mut decoded = Decoded::default();
        while input.has_remaining() {
            if let State::Data { left } = self.state {
                let length = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                let bytes = input.split_to(length);
                self.data(&bytes, left - length as u64)?;
                decoded.push(bytes);
            } else if let Some(line) = self.take_line(&mut input)? {
                self.line_ended(&line)?;
            }
        }
        Ok(decoded.into_slices())
    }

    /// The body has ended.
    ///
    /// # Errors
    /// `IncompleteBody` if something is missing.
    pub fn end(mut self) -> Result<Trailers, Refusal> {
        // The last line break may be missing.
        if self.state == State::Trailers && !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            self.line_ended(&line)?;
        }
        let is_signed = self.signer.is_none() || !self.has_trailers;
        let is_whole = match self.state {
            State::End => true,
            State::Trailers => is_signed && self.trailers.is_empty() != self.has_trailers,
            State::Head | State::Data { .. } | State::DataEnd => false,
        };
        match is_whole && self.expected == 0 {
            true => Ok(self.trailers),
            false => Err(Refusal::new(
                "IncompleteBody",
                "The body ended before its last chunk, or it is shorter than x-amz-decoded-content-length",
            )),
        }
    }

    fn data(&mut self, bytes: &[u8], left: u64) -> Result<(), Refusal> {
        if let Some((context, _)) = &mut self.chunk {
            context.update(bytes);
        }
        self.state = State::Data { left };
        if left == 0 {
            self.chunk_ended()?;
            self.state = State::DataEnd;
        }
        Ok(())
    }

    fn chunk_ended(&mut self) -> Result<(), Refusal> {
        let (Some((context, signature)), Some(signer)) = (self.chunk.take(), &mut self.signer) else { return Ok(()) };
        signer.check_chunk(context.finish().as_ref(), &signature)
    }

    /// A line without its break, once it is whole.
    fn take_line(&mut self, input: &mut Bytes) -> Result<Option<Vec<u8>>, Refusal> {
        let (length, is_whole) = match input.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (input.len(), false),
        };
        if self.line.len() + length > LINE_MAX {
            return Err(malformed("a line is too long"));
        }
        self.line.extend_from_slice(&input.split_to(length));
        if !is_whole {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.line);
        line.pop();
        line.pop_if(|byte| *byte == b'\r');
        Ok(Some(line))
    }

    fn line_ended(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let line = std::str::from_utf8(line).map_err(|_| malformed("a line is not text"))?;
        match self.state {
            State::Head => self.head(line),
            State::DataEnd if line.is_empty() => {
                self.state = State::Head;
                Ok(())
            }
            State::DataEnd => Err(malformed("a chunk is longer than its length")),
            State::Trailers => self.trailer(line),
            State::End if line.is_empty() => Ok(()),
            State::End => Err(malformed("there are bytes behind the last chunk")),
            State::Data { .. } => Err(malformed("a line within a chunk")),
        }
    }

    fn head(&mut self, line: &str) -> Result<(), Refusal> {
        let (length, extension) = line.split_once(';').unwrap_or((line, ""));
        let length = parse_length(length).ok_or_else(|| malformed("a chunk's length is not a hexadecimal number"))?;
        if self.signer.is_some() {
            let signature = extension.trim().strip_prefix("chunk-signature=");
            let signature = signature.ok_or_else(|| malformed("a chunk has no signature"))?;
            if length > SIGNED_CHUNK_MAX {
                return Err(Refusal::new("EntityTooLarge", "A signed chunk is larger than 16 MiB")
                    .with("MaxChunkSizeAllowed", SIGNED_CHUNK_MAX.to_string()));
            }
            self.chunk = Some((Context::new(&SHA256), signature.to_owned()));
        }
        self.expected = self
            .expected
            .checked_sub(length)
            .ok_or_else(|| malformed("the chunks are longer than x-amz-decoded-content-length"))?;
        self.state = State::Data { left: length };
        if length == 0 {
            self.chunk_ended()?;
            self.state = State::Trailers;
        }
        Ok(())
    }

    /// A line behind the last chunk. An empty one is the end, unless the signature of the trailers follows.
    fn trailer(&mut self, line: &str) -> Result<(), Refusal> {
        if line.is_empty() {
            let waits = self.has_trailers && self.signer.is_some();
            self.state = if waits { State::Trailers } else { State::End };
            return Ok(());
        }
        let malformed = |what: &'static str| Refusal::new("MalformedTrailerError", what);
        if !self.has_trailers || self.trailers.len() >= TRAILERS_MAX {
            return Err(malformed("There are trailers that the request does not announce, or too many"));
        }
        let (name, value) = line.split_once(':').ok_or_else(|| malformed("A trailer is not a name and a value"))?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
        if name == "x-amz-trailer-signature" {
            return self.trailers_signed(&value);
        }
        self.trailers.push((name, value));
        Ok(())
    }

    fn trailers_signed(&mut self, signature: &str) -> Result<(), Refusal> {
        let Some(signer) = &mut self.signer else {
            return Err(Refusal::new("MalformedTrailerError", "The trailers of an unsigned body have a signature"));
        };
        let canonical: String = self.trailers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        signer.check_trailers(&canonical, signature)?;
        self.state = State::End;
        Ok(())
    }
}

/// Bytes of chunks, in their order.
#[derive(Default)]
struct Decoded {
    slices: Vec<Bytes>,
    /// Copies of short slices, behind the others.
    short: BytesMut,
}

impl Decoded {
    fn push(&mut self, slice: Bytes) {
        if slice.len() < SLICE_MIN {
            self.short.extend_from_slice(&slice);
        } else {
            self.end_short();
            self.slices.push(slice);
        }
    }

    fn end_short(&mut self) {
        if !self.short.is_empty() {
            self.slices.push(self.short.split().freeze());
        }
    }

    fn into_slices(mut self) -> Vec<Bytes> {
        self.end_short();
        self.slices
    }
}

/// At most 16 hexadecimal digits.
fn parse_length(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = (1..=16).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(text, 16).ok())?
}

fn malformed(what: &str) -> Refusal {
    Refusal::new("InvalidRequest", format!("The aws-chunked body is malformed: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::signature::tests::{AmazonsChunks, amazons_chunks};

    fn decode(chunks: Chunks, body: &[u8], step: usize) -> Result<(Vec<u8>, Trailers), Refusal> {
        let (mut chunks, mut decoded) = (chunks, Vec::new());
        for piece in body.chunks(step) {
            for bytes in chunks.push(Bytes::copy_from_slice(piece))? {
                decoded.extend_from_slice(&bytes);
            }
        }
        Ok((decoded, chunks.end()?))
    }

    fn unsigned(length: u64, body: &str) -> Result<(Vec<u8>, Trailers), Refusal> {
        decode(Chunks::new(None, true, length), body.as_bytes(), 3)
    }

    #[test]
    fn amazons_examples_of_signed_chunks_decode_in_pieces_of_any_size() {
        for has_trailers in [false, true] {
            let AmazonsChunks { signer, body, content } = amazons_chunks(has_trailers);
            for step in [1, 7, 1000, 65_536, body.len()] {
                let chunks = Chunks::new(Some(signer.clone()), has_trailers, content.len() as u64);
                let (decoded, trailers) = decode(chunks, &body, step).unwrap();
                assert!(decoded == content, "pieces of {step}");
                let expected = [("x-amz-checksum-crc32c".to_owned(), "sOO8/Q==".to_owned())];
                assert_eq!(trailers, if has_trailers { &expected[..] } else { &[] });
            }
        }
    }

    #[test]
    fn a_changed_byte_of_signed_chunks_is_noticed() {
        for has_trailers in [false, true] {
            let AmazonsChunks { signer, body, content } = amazons_chunks(has_trailers);
            let places = [0, 30, 100, 5000, 65_700, 66_000, body.len() - 100, body.len() - 20];
            for place in places {
                let mut body = body.clone();
                body[place] ^= 1;
                let chunks = Chunks::new(Some(signer.clone()), has_trailers, content.len() as u64);
                assert!(decode(chunks, &body, 4096).is_err(), "byte {place} of {}", body.len());
            }
        }
    }

    #[test]
    fn signed_chunks_that_end_early_are_incomplete() {
        for has_trailers in [false, true] {
            let AmazonsChunks { signer, body, content } = amazons_chunks(has_trailers);
            for length in [0, 50, 65_000, 65_700, body.len() - 100] {
                let chunks = Chunks::new(Some(signer.clone()), has_trailers, content.len() as u64);
                assert_eq!(decode(chunks, &body[..length], 4096).unwrap_err().code, "IncompleteBody", "{length}");
            }
        }
    }

    #[test]
    fn unsigned_chunks_with_trailers_decode() {
        let body = "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        let (decoded, trailers) = unsigned(11, body).unwrap();
        assert_eq!((decoded.as_slice(), trailers.len()), (&b"hello world"[..], 1));
        assert_eq!(trailers[0], ("x-amz-checksum-crc32".to_owned(), "AAAA".to_owned()));
        assert_eq!(unsigned(0, "0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n").unwrap().0, b"");
    }

    /// One byte in a chunk of its own must not cost the memory of a slice, nor keep the buffer that it came in.
    #[test]
    fn short_chunks_are_copied_and_long_ones_are_not() {
        let (short, long) = ("1\r\nx\r\n".repeat(10_000), "y".repeat(SLICE_MIN));
        let body = Bytes::from(format!("{short}{SLICE_MIN:x}\r\n{long}\r\n{short}0\r\na:b\r\n\r\n"));
        let mut chunks = Chunks::new(None, true, 20_000 + SLICE_MIN as u64);
        let slices = chunks.push(body.clone()).unwrap();
        assert_eq!(slices.iter().map(Bytes::len).collect::<Vec<_>>(), [10_000, SLICE_MIN, 10_000]);
        let is_of_body = |slice: &Bytes| body.as_ptr_range().contains(&slice.as_ptr());
        assert_eq!(slices.iter().map(is_of_body).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(slices.concat(), [vec![b'x'; 10_000], long.into_bytes(), vec![b'x'; 10_000]].concat());
        chunks.end().unwrap();
    }

    #[test]
    fn malformed_chunks_are_refused() {
        let long = format!("5;{}\r\nhello\r\n", "x".repeat(LINE_MAX));
        let many: String = (0..=TRAILERS_MAX).map(|i| format!("x-{i}:y\r\n")).collect();
        let many = format!("5\r\nhello\r\n0\r\n{many}\r\n");
        let bodies = [
            ("5\r\nhello", "IncompleteBody"),
            ("5\r\nhello\r\n", "IncompleteBody"),
            ("4\r\nhell\r\n0\r\nx:y\r\n\r\n", "IncompleteBody"),
            ("6\r\nhello!\r\n0\r\nx:y\r\n\r\n", "InvalidRequest"),
            ("5\r\nhello!\r\n0\r\nx:y\r\n\r\n", "InvalidRequest"),
            ("five\r\nhello\r\n", "InvalidRequest"),
            ("-5\r\nhello\r\n", "InvalidRequest"),
            ("+5\r\nhello\r\n", "InvalidRequest"),
            ("\r\nhello\r\n", "InvalidRequest"),
            ("00000000000000005\r\nhello\r\n", "InvalidRequest"),
            ("ffffffffffffffff\r\nhello\r\n", "InvalidRequest"),
            ("5\r\nhello\r\n0\r\nno value\r\n\r\n", "MalformedTrailerError"),
            ("5\r\nhello\r\n0\r\nx-amz-trailer-signature:00\r\n\r\n", "MalformedTrailerError"),
            ("5\r\nhello\r\n0\r\nx:y\r\n\r\nmore\r\n", "InvalidRequest"),
            (long.as_str(), "InvalidRequest"),
            (many.as_str(), "MalformedTrailerError"),
        ];
        for (body, code) in bodies {
            assert_eq!(unsigned(5, body).unwrap_err().code, code, "{body}");
        }
    }

    #[test]
    fn a_signed_chunk_has_a_signature_and_at_most_16_mib() {
        let signer = amazons_chunks(false).signer;
        let chunks = || Chunks::new(Some(signer.clone()), false, 1 << 40);
        assert_eq!(decode(chunks(), b"5\r\nhello\r\n", 64).unwrap_err().code, "InvalidRequest");
        let body = format!("1000001;chunk-signature={}\r\n", "0".repeat(64));
        assert_eq!(decode(chunks(), body.as_bytes(), 64).unwrap_err().code, "EntityTooLarge");
    }
}
