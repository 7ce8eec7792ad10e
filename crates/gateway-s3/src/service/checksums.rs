//! Checksums of objects: MD5, which is the ETag, and the additional ones.
//!
//! Source: "Checking object integrity for data uploads in Amazon S3" of the Amazon S3 user guide.

use crate::refusal::Refusal;
use crate::server::Trailers;
use crate::storage::{Algorithm, Checksum, ChecksumKind, PartInfo};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use hyper::HeaderMap;
use md5::{Digest, Md5};
use ring::digest;

/// All algorithms, with the ends of their headers' names and the names in `x-amz-checksum-algorithm`.
pub(crate) const ALGORITHMS: [(Algorithm, &str, &str); 5] = [
    (Algorithm::Crc32, "crc32", "CRC32"),
    (Algorithm::Crc32c, "crc32c", "CRC32C"),
    (Algorithm::Crc64Nvme, "crc64nvme", "CRC64NVME"),
    (Algorithm::Sha1, "sha1", "SHA1"),
    (Algorithm::Sha256, "sha256", "SHA256"),
];

/// The algorithm of objects whose client names none.
pub(crate) const DEFAULT: Algorithm = Algorithm::Crc64Nvme;

/// An algorithm of `x-amz-checksum-algorithm`.
///
/// # Errors
/// `InvalidRequest` for any other name.
pub(crate) fn algorithm(name: &str) -> Result<Algorithm, Refusal> {
    let known = ALGORITHMS.iter().find(|(.., known)| known.eq_ignore_ascii_case(name));
    known.map(|(algorithm, ..)| *algorithm).ok_or(Refusal::new(
        "InvalidRequest",
        "Checksum algorithm provided is unsupported. Please try again with any of the valid types: \
         [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]",
    ))
}

/// The name of an algorithm in `x-amz-checksum-algorithm`.
pub(crate) fn name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(known, ..)| *known == algorithm).map_or("", |(.., name)| name)
}

fn algorithm_of_header(name: &str) -> Option<Algorithm> {
    let end = name.strip_prefix("x-amz-checksum-")?;
    ALGORITHMS.iter().find(|(_, known, _)| *known == end).map(|(algorithm, ..)| *algorithm)
}

/// Bytes of a checksum.
fn length(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::Crc32 | Algorithm::Crc32c => 4,
        Algorithm::Crc64Nvme => 8,
        Algorithm::Sha1 => 20,
        Algorithm::Sha256 => 32,
    }
}

/// True if the algorithm can cover a whole object that is made of parts.
fn can_combine(algorithm: Algorithm) -> bool {
    crc(algorithm).is_some()
}

fn crc(algorithm: Algorithm) -> Option<CrcAlgorithm> {
    match algorithm {
        Algorithm::Crc32 => Some(CrcAlgorithm::Crc32IsoHdlc),
        Algorithm::Crc32c => Some(CrcAlgorithm::Crc32Iscsi),
        Algorithm::Crc64Nvme => Some(CrcAlgorithm::Crc64Nvme),
        Algorithm::Sha1 | Algorithm::Sha256 => None,
    }
}

/// What a request says of its body's checksums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    md5: Option<[u8; 16]>,
    /// Base64.
    value: Option<(Algorithm, String)>,
    /// A trailer will have the value.
    trailer: Option<Algorithm>,
}

impl Expected {
    /// What the headers say.
    ///
    /// # Errors
    /// `InvalidDigest` if `Content-MD5` is not one; `InvalidRequest` if a checksum is not one, or if there are several.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let md5 = text("content-md5").map(parse_md5).transpose()?;
        let mut values = headers.iter().filter_map(|(name, value)| {
            Some((algorithm_of_header(name.as_str())?, value.to_str().unwrap_or("").to_owned()))
        });
        let value = values.next();
        let announced = text("x-amz-trailer").unwrap_or("").split(',');
        let trailer = announced.filter_map(|name| algorithm_of_header(&name.trim().to_ascii_lowercase())).next();
        if values.next().is_some() || (value.is_some() && trailer.is_some()) {
            let message = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
            return Err(Refusal::new("InvalidRequest", message));
        }
        if let Some((algorithm, value)) = &value {
            parse(*algorithm, value)?;
        }
        let expected = Self { md5, value, trailer };
        expected.check_named(text("x-amz-sdk-checksum-algorithm"))?;
        Ok(expected)
    }

    /// What the headers say of a body that is XML. `is_completion`: the checksums are those of the object.
    ///
    /// # Errors
    /// As [`Expected::of`].
    pub(crate) fn of_xml(headers: &HeaderMap, is_completion: bool) -> Result<Self, Refusal> {
        match is_completion {
            false => Self::of(headers),
            true => {
                let md5 = headers.get("content-md5").and_then(|value| value.to_str().ok()).map(parse_md5);
                Ok(Self { md5: md5.transpose()?, ..Self::default() })
            }
        }
    }

    /// Compares with the algorithm that the request names beside the value.
    fn check_named(&self, named: Option<&str>) -> Result<(), Refusal> {
        let Some(named) = named else { return Ok(()) };
        match self.algorithm() {
            Some(given) if given == algorithm(named)? => Ok(()),
            Some(_) => Err(Refusal::new("InvalidRequest", "Value for x-amz-sdk-checksum-algorithm header is invalid.")),
            None => Err(Refusal::new(
                "InvalidRequest",
                "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer \
                 headers were found.",
            )),
        }
    }

    /// The algorithm of the value that is given, or will be.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.value.as_ref().map(|(algorithm, _)| *algorithm).or(self.trailer)
    }

    /// Adds what the trailers say.
    ///
    /// # Errors
    /// `MalformedTrailerError` if the trailer that was announced is missing, or if it is another one; `InvalidRequest`
    /// if it is no checksum.
    pub(crate) fn complete(&mut self, trailers: &Trailers) -> Result<(), Refusal> {
        let mut found = trailers.iter().filter_map(|(name, value)| Some((algorithm_of_header(name)?, value.clone())));
        let (first, second) = (found.next(), found.next());
        match (self.trailer, first, second) {
            (None, None, None) => Ok(()),
            (Some(announced), Some((algorithm, value)), None) if algorithm == announced => {
                parse(algorithm, &value)?;
                self.value = Some((algorithm, value));
                Ok(())
            }
            _ => Err(Refusal::new("MalformedTrailerError", "The trailers are not those that x-amz-trailer announces")),
        }
    }
}

fn parse_md5(text: &str) -> Result<[u8; 16], Refusal> {
    let invalid = || Refusal::new("InvalidDigest", "The Content-MD5 you specified was invalid.");
    BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(invalid)
}

/// # Errors
/// `InvalidRequest` if the text is not a checksum of the algorithm, in base64.
fn parse(algorithm: Algorithm, text: &str) -> Result<Vec<u8>, Refusal> {
    let invalid = || {
        let name = name(algorithm).to_ascii_lowercase();
        Refusal::new("InvalidRequest", format!("Value for x-amz-checksum-{name} header is invalid."))
    };
    BASE64.decode(text).ok().filter(|bytes| bytes.len() == length(algorithm)).ok_or_else(invalid)
}

/// MD5, and the other checksums in base64.
pub(crate) type Computed = ([u8; 16], Vec<(Algorithm, String)>);

/// Checksums of bytes that pass by.
pub(crate) struct Sums {
    md5: Md5,
    others: Vec<(Algorithm, Hasher)>,
}

enum Hasher {
    Crc(Crc),
    Sha(digest::Context),
}

impl Sums {
    /// MD5 and these.
    pub(crate) fn new(algorithms: &[Algorithm]) -> Self {
        let mut others: Vec<(Algorithm, Hasher)> = Vec::new();
        for &algorithm in algorithms {
            if others.iter().all(|(known, _)| *known != algorithm) {
                others.push((algorithm, Hasher::new(algorithm)));
            }
        }
        Self { md5: Md5::new(), others }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        for (_, hasher) in &mut self.others {
            match hasher {
                Hasher::Crc(crc) => crc.update(bytes),
                Hasher::Sha(context) => context.update(bytes),
            }
        }
    }

    /// Compares with what the request says, and returns the MD5 and the checksums in base64.
    ///
    /// # Errors
    /// `BadDigest` if one is another.
    pub(crate) fn finish(self, expected: &Expected) -> Result<Computed, Refusal> {
        let md5: [u8; 16] = self.md5.finalize().into();
        if expected.md5.is_some_and(|expected| expected != md5) {
            return Err(Refusal::new("BadDigest", "The Content-MD5 you specified did not match what we received."));
        }
        let others: Vec<(Algorithm, String)> =
            self.others.into_iter().map(|(algorithm, hasher)| (algorithm, hasher.finish(algorithm))).collect();
        if let Some((algorithm, value)) = &expected.value
            && !others.iter().any(|(known, computed)| known == algorithm && computed == value)
        {
            return Err(no_match(*algorithm));
        }
        Ok((md5, others))
    }
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match (crc(algorithm), algorithm) {
            (Some(crc), _) => Hasher::Crc(Crc::new(crc)),
            (None, Algorithm::Sha1) => Hasher::Sha(digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY)),
            (None, _) => Hasher::Sha(digest::Context::new(&digest::SHA256)),
        }
    }

    fn finish(self, algorithm: Algorithm) -> String {
        match self {
            Hasher::Crc(crc) => crc_text(algorithm, crc.finalize()),
            Hasher::Sha(context) => BASE64.encode(context.finish()),
        }
    }
}

fn crc_text(algorithm: Algorithm, sum: u64) -> String {
    let bytes = sum.to_be_bytes();
    BASE64.encode(&bytes[bytes.len() - length(algorithm)..])
}

fn no_match(algorithm: Algorithm) -> Refusal {
    let message = format!("The {} you specified did not match the calculated checksum.", name(algorithm));
    Refusal::new("BadDigest", message)
}

/// The algorithm of an upload, and what its checksum covers.
///
/// # Errors
/// `InvalidRequest` if the two do not go together.
pub(crate) fn of_upload(named: Option<&str>, kind: Option<&str>) -> Result<Option<(Algorithm, ChecksumKind)>, Refusal> {
    let Some(named) = named else {
        return match kind {
            None => Ok(None),
            Some(_) => Err(Refusal::new(
                "InvalidRequest",
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )),
        };
    };
    let algorithm = algorithm(named)?;
    let kind = match kind {
        None if algorithm == Algorithm::Crc64Nvme => ChecksumKind::Full,
        None => ChecksumKind::Composite,
        Some("FULL_OBJECT") => ChecksumKind::Full,
        Some("COMPOSITE") => ChecksumKind::Composite,
        Some(_) => return Err(Refusal::new("InvalidRequest", "Value for x-amz-checksum-type header is invalid.")),
    };
    let fits = match kind {
        ChecksumKind::Full => can_combine(algorithm),
        ChecksumKind::Composite => algorithm != Algorithm::Crc64Nvme,
    };
    match fits {
        true => Ok(Some((algorithm, kind))),
        false => Err(Refusal::new(
            "InvalidRequest",
            format!("The {} checksum type cannot be used with the {named} checksum algorithm.", kind_name(kind)),
        )),
    }
}

/// The kind as `x-amz-checksum-type` has it.
pub(crate) fn kind_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::Full => "FULL_OBJECT",
        ChecksumKind::Composite => "COMPOSITE",
    }
}

/// The checksum of an object of these parts. `None` if a part has none of this algorithm.
pub(crate) fn of_parts(algorithm: Algorithm, kind: ChecksumKind, parts: &[PartInfo]) -> Option<Checksum> {
    let mut sums = Vec::new();
    for part in parts {
        let checksum = part.checksum.as_ref().filter(|checksum| checksum.algorithm == algorithm)?;
        sums.push((BASE64.decode(&checksum.value).ok()?, part.size));
    }
    let value = match kind {
        ChecksumKind::Composite => {
            let mut hasher = Sums::new(&[algorithm]);
            sums.iter().for_each(|(sum, _)| hasher.update(sum));
            let (_, computed) = hasher.finish(&Expected::default()).ok()?;
            format!("{}-{}", computed.first()?.1, parts.len())
        }
        ChecksumKind::Full => {
            let crc = crc(algorithm)?;
            let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
            let combine =
                |so_far: u64, (sum, size): &(Vec<u8>, u64)| crc_fast::checksum_combine(crc, so_far, number(sum), *size);
            let (first, rest) = sums.split_first()?;
            crc_text(algorithm, rest.iter().fold(number(&first.0), combine))
        }
    };
    Some(Checksum { algorithm, value, kind })
}

/// Compares the checksum of a completed upload with what the request says it is.
///
/// # Errors
/// `BadDigest` if it is another; `InvalidRequest` if the upload has another algorithm, or if it is no checksum.
pub(crate) fn check_completed(headers: &HeaderMap, checksum: Option<&Checksum>) -> Result<(), Refusal> {
    let given =
        headers.iter().find_map(|(name, value)| Some((algorithm_of_header(name.as_str())?, value.to_str().ok()?)));
    let kind = headers.get("x-amz-checksum-type").and_then(|value| value.to_str().ok());
    let Some(checksum) = checksum else { return Ok(()) };
    if kind.is_some_and(|kind| kind != kind_name(checksum.kind)) {
        let message = "The upload was created using another checksum mode. The complete request must use the same.";
        return Err(Refusal::new("InvalidRequest", message));
    }
    match given {
        None => Ok(()),
        Some((algorithm, _)) if algorithm != checksum.algorithm => {
            Err(Refusal::new("InvalidRequest", "The upload was created using another checksum algorithm."))
        }
        Some((_, value)) if value == checksum.value => Ok(()),
        // The number of parts may be left out.
        Some((_, value)) if checksum.value.split('-').next() == Some(value) => Ok(()),
        Some((algorithm, value)) => {
            parse(algorithm, value.split('-').next().unwrap_or_default())?;
            Err(no_match(algorithm))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::headers_for_tests as headers;
    use crate::storage::Time;

    /// Checksums of "123456789" by the catalogue of CRCs, and by FIPS 180.
    const OF_DIGITS: [(Algorithm, &str); 5] = [
        (Algorithm::Crc32, "y/Q5Jg=="),
        (Algorithm::Crc32c, "4waSgw=="),
        (Algorithm::Crc64Nvme, "rosUhgp5mIg="),
        (Algorithm::Sha1, "98O8HYCOBHMq32eZZczDTKeuNEE="),
        (Algorithm::Sha256, "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="),
    ];

    fn computed(bytes: &[u8], algorithms: &[Algorithm]) -> Vec<(Algorithm, String)> {
        let mut sums = Sums::new(algorithms);
        bytes.chunks(4).for_each(|chunk| sums.update(chunk));
        sums.finish(&Expected::default()).unwrap().1
    }

    #[test]
    fn checksums_are_those_of_the_standards() {
        for (algorithm, value) in OF_DIGITS {
            assert_eq!(computed(b"123456789", &[algorithm]), [(algorithm, value.to_owned())]);
        }
    }

    #[test]
    fn a_wrong_checksum_is_a_bad_digest() {
        for (algorithm, header, _) in ALGORITHMS {
            let value = computed(b"hello", &[algorithm]).remove(0).1;
            let expected = Expected::of(&headers(&[(&format!("x-amz-checksum-{header}"), &value)])).unwrap();
            assert_eq!(expected.algorithm(), Some(algorithm));
            for (bytes, ok) in [(&b"hello"[..], true), (b"hallo", false)] {
                let mut sums = Sums::new(&[algorithm]);
                sums.update(bytes);
                let outcome = sums.finish(&expected).map(|_| ()).map_err(|refusal| refusal.code);
                assert_eq!(outcome, if ok { Ok(()) } else { Err("BadDigest") });
            }
        }
        let expected = Expected::of(&headers(&[("content-md5", "XUFAKrxLKna5cZ2REBfFkg==")])).unwrap();
        let mut sums = Sums::new(&[]);
        sums.update(b"hello");
        assert!(sums.finish(&expected).is_ok());
        assert_eq!(Sums::new(&[]).finish(&expected).unwrap_err().code, "BadDigest");
    }

    #[test]
    fn malformed_checksums_are_refused() {
        let cases: [(&[(&str, &str)], &str); 7] = [
            (&[("content-md5", "short")], "InvalidDigest"),
            (&[("x-amz-checksum-crc32", "AAAA")], "InvalidRequest"),
            (&[("x-amz-checksum-sha256", "y/Q5Jg==")], "InvalidRequest"),
            (&[("x-amz-checksum-crc32", "y/Q5Jg=="), ("x-amz-checksum-crc32c", "4waSgw==")], "InvalidRequest"),
            (&[("x-amz-sdk-checksum-algorithm", "CRC32")], "InvalidRequest"),
            (&[("x-amz-sdk-checksum-algorithm", "SHA1"), ("x-amz-checksum-crc32", "y/Q5Jg==")], "InvalidRequest"),
            (&[("x-amz-sdk-checksum-algorithm", "MD4"), ("x-amz-checksum-crc32", "y/Q5Jg==")], "InvalidRequest"),
        ];
        for (given, code) in cases {
            assert_eq!(Expected::of(&headers(given)).unwrap_err().code, code, "{given:?}");
        }
    }

    #[test]
    fn a_trailer_has_to_be_the_one_that_was_announced() {
        let announced = Expected::of(&headers(&[("x-amz-trailer", "x-amz-checksum-crc32")])).unwrap();
        assert_eq!(announced.algorithm(), Some(Algorithm::Crc32));
        let trailer = |name: &str| vec![(name.to_owned(), "y/Q5Jg==".to_owned())];
        let mut expected = announced.clone();
        expected.complete(&trailer("x-amz-checksum-crc32")).unwrap();
        assert_eq!(expected.value, Some((Algorithm::Crc32, "y/Q5Jg==".to_owned())));
        for trailers in [vec![], trailer("x-amz-checksum-crc32c")] {
            assert_eq!(announced.clone().complete(&trailers).unwrap_err().code, "MalformedTrailerError");
        }
        let unannounced = Expected::default().complete(&trailer("x-amz-checksum-crc32"));
        assert_eq!(unannounced.unwrap_err().code, "MalformedTrailerError");
    }

    fn part(number: u16, bytes: &[u8], algorithm: Algorithm) -> PartInfo {
        let value = computed(bytes, &[algorithm]).remove(0).1;
        let checksum = Some(Checksum { algorithm, value, kind: ChecksumKind::Full });
        PartInfo { number, size: bytes.len() as u64, etag: String::new(), modified: Time::default(), checksum }
    }

    #[test]
    fn a_crc_of_parts_is_that_of_the_whole() {
        for (algorithm, value) in OF_DIGITS.into_iter().take(3) {
            let parts = [part(1, b"1234", algorithm), part(2, b"5", algorithm), part(3, b"6789", algorithm)];
            assert_eq!(of_parts(algorithm, ChecksumKind::Full, &parts).unwrap().value, value);
        }
    }

    #[test]
    fn a_composite_checksum_covers_those_of_the_parts() {
        let parts = [part(1, b"1234", Algorithm::Sha256), part(2, b"56789", Algorithm::Sha256)];
        let both: Vec<u8> =
            parts.iter().flat_map(|part| BASE64.decode(&part.checksum.as_ref().unwrap().value).unwrap()).collect();
        let expected = format!("{}-2", computed(&both, &[Algorithm::Sha256])[0].1);
        let checksum = of_parts(Algorithm::Sha256, ChecksumKind::Composite, &parts).unwrap();
        assert_eq!(checksum.value, expected);
        assert_eq!(of_parts(Algorithm::Crc32, ChecksumKind::Composite, &parts), None);
        let given = headers(&[("x-amz-checksum-sha256", &expected)]);
        check_completed(&given, Some(&checksum)).unwrap();
        let given = headers(&[("x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=-2")]);
        assert_eq!(check_completed(&given, Some(&checksum)).unwrap_err().code, "BadDigest");
    }

    #[test]
    fn kinds_and_algorithms_have_to_go_together() {
        assert_eq!(of_upload(None, None).unwrap(), None);
        assert_eq!(of_upload(Some("CRC32"), None).unwrap(), Some((Algorithm::Crc32, ChecksumKind::Composite)));
        assert_eq!(of_upload(Some("CRC64NVME"), None).unwrap(), Some((Algorithm::Crc64Nvme, ChecksumKind::Full)));
        assert!(of_upload(Some("CRC32C"), Some("FULL_OBJECT")).is_ok());
        for (algorithm, kind) in [
            (Some("SHA1"), Some("FULL_OBJECT")),
            (Some("CRC64NVME"), Some("COMPOSITE")),
            (Some("CRC32"), Some("PARTIAL")),
            (Some("MD5"), None),
            (None, Some("COMPOSITE")),
        ] {
            assert_eq!(of_upload(algorithm, kind).unwrap_err().code, "InvalidRequest");
        }
    }
}
