//! Keys of objects as paths of names, and back (docs/format/objects.md).
//!
//! A key is cut at each `/` into segments: directories, and a last segment, the file. Most segments are names as they
//! are. The others get a name that begins with [`ESCAPE`], in which NUL is the bytes 01 01 and 01 is 01 02:
//!
//! | name | what it is |
//! |---|---|
//! | `%~-` and an escaped segment | a file |
//! | `%~=` and an escaped segment | a directory |
//! | `%~+` and 249 bytes of an escaped segment | a directory with the rest of the segment in it |
//!
//! A segment is escaped if it is empty, `.` or `..`, begins with `%~`, contains NUL or 01, or has more than 252 bytes. A
//! file whose segment is its own name has an alternate name, `%~-` and the segment, for the time that a directory has
//! the name. Escaping keeps the order of bytes, and what begins with what: the escaped form of a whole key sorts as the
//! key.

use bytes::Bytes;
use hekate_proto::{ESCAPE, ESCAPED_NAME, KEY_BYTES_MAX, Name};

/// Begin of the name of a directory that stands for a whole segment.
pub const ESCAPED_DIRECTORY: &[u8] = b"%~=";
/// Begin of the name of a directory that stands for the begin of a segment.
pub const CUT: &[u8] = b"%~+";
/// Most bytes of an escaped segment in one name: the alternate name of a directory's name, `%~-%~=…`, has 255 bytes.
pub const ESCAPED_BYTES_MAX: usize = 249;
/// Longest segment that is its own name, in bytes: its alternate name has 255.
pub const PLAIN_BYTES_MAX: usize = 252;

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadKey {
    Empty,
    TooLong,
}

/// A key as a path from its bucket's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    pub directories: Vec<Segment>,
    /// The file. [`Segment::is_empty`] if the key ends in `/`.
    pub file: Segment,
}

impl Path {
    /// The path of a key.
    ///
    /// # Errors
    /// The key is empty or has more than 1,024 bytes.
    pub fn of(key: &str) -> Result<Self, BadKey> {
        match key.len() {
            0 => return Err(BadKey::Empty),
            length if length > KEY_BYTES_MAX => return Err(BadKey::TooLong),
            _ => {}
        }
        let (above, last) = key.rsplit_once('/').map_or((None, key), |(above, last)| (Some(above), last));
        let directories = above.map(directories_of).unwrap_or_default();
        Ok(Self { directories, file: Segment::file(last.as_bytes()) })
    }
}

/// The directories of a text that has a name after each `/`: `a/b` is two.
pub fn directories_of(text: &str) -> Vec<Segment> {
    text.split('/').map(|segment| Segment::directory(segment.as_bytes())).collect()
}

/// The names of one segment of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Directories that hold the begin of a segment which is too long for one name, one in the other.
    pub cut: Vec<Name>,
    /// The name in the last of these directories, or in the directory of the segment before.
    pub name: Name,
    /// The segment is its own name.
    pub is_plain: bool,
    /// The segment itself, if it is escaped although it can be a name. Only programs that do not use keys make it; it is
    /// found before the escaped one.
    pub foreign: Option<Name>,
}

impl Segment {
    /// The names of a segment that is followed by `/`.
    pub fn directory(segment: &[u8]) -> Self {
        Self::new(segment, ESCAPED_DIRECTORY)
    }

    /// The names of a key's last segment.
    pub fn file(segment: &[u8]) -> Self {
        Self::new(segment, ESCAPED_NAME)
    }

    fn new(segment: &[u8], begin: &[u8]) -> Self {
        let own = Name::new(Bytes::copy_from_slice(segment)).ok().filter(|_| !segment.starts_with(ESCAPE));
        match own {
            Some(name) if is_plain(segment) => Self { cut: Vec::new(), name, is_plain: true, foreign: None },
            foreign => {
                let escaped = escape(segment);
                let whole = escaped.len().saturating_sub(1) / ESCAPED_BYTES_MAX * ESCAPED_BYTES_MAX;
                let cut = escaped[..whole].chunks(ESCAPED_BYTES_MAX).map(|part| named(CUT, part)).collect();
                Self { cut, name: named(begin, &escaped[whole..]), is_plain: false, foreign }
            }
        }
    }

    /// The name of the file while a directory has its own. `None` if no directory can have it.
    pub fn alternate(&self) -> Option<Name> {
        self.is_plain.then(|| alternate_of(&self.name))
    }

    /// True for the file of a key that ends in `/`.
    pub fn is_empty(&self) -> bool {
        self.name.as_bytes() == ESCAPED_NAME && self.cut.is_empty()
    }
}

/// The name that a file gets when a directory takes its name. `name` is one that [`Segment`] makes.
pub fn alternate_of(name: &Name) -> Name {
    named(ESCAPED_NAME, name.as_bytes())
}

/// True if the segment, which can be a name, is its own name.
fn is_plain(segment: &[u8]) -> bool {
    segment.len() <= PLAIN_BYTES_MAX && !segment.contains(&1)
}

fn named(begin: &[u8], rest: &[u8]) -> Name {
    match Name::new([begin, rest].concat().into()) {
        Ok(name) => name,
        Err(bad) => unreachable!("an escaped segment has no NUL and no /, and at most 252 bytes: {bad:?}"),
    }
}

/// The bytes without NUL, in the same order.
pub fn escape(bytes: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0 => escaped.extend([1, 1]),
            1 => escaped.extend([1, 2]),
            other => escaped.push(*other),
        }
    }
    escaped
}

/// The bytes that [`escape`] was given. `None` if it returns no such bytes.
pub fn unescape(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            0 => return None,
            1 => rest.next().filter(|second| matches!(second, 1 | 2))? - 1,
            other => *other,
        });
    }
    Some(bytes)
}

/// The text of an escaped key. `None` if no key has this form.
pub fn text_of(escaped: &[u8]) -> Option<String> {
    String::from_utf8(unescape(escaped)?).ok()
}

/// What a name in a directory says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling<'a> {
    /// The segment.
    Plain(&'a [u8]),
    /// The escaped segment, of a file.
    File(&'a [u8]),
    /// The escaped segment, of a directory.
    Directory(&'a [u8]),
    /// The begin of escaped segments.
    Cut(&'a [u8]),
    /// No key has the name.
    None,
}

/// What a name says of a key.
pub fn spelling(name: &[u8]) -> Spelling<'_> {
    if !name.starts_with(ESCAPE) {
        return Spelling::Plain(name);
    }
    let (begin, rest) = name.split_at(name.len().min(CUT.len()));
    match begin {
        ESCAPED_NAME => Spelling::File(rest),
        ESCAPED_DIRECTORY => Spelling::Directory(rest),
        CUT if rest.len() == ESCAPED_BYTES_MAX => Spelling::Cut(rest),
        _ => Spelling::None,
    }
}

/// True if the escaped segment leads to a file whose name begins with `%~-`, in `cuts` directories that hold its begin.
pub fn is_file(escaped: &[u8], cuts: usize) -> bool {
    segment_of(escaped, Segment::file).is_some_and(|segment| segment.cut.len() == cuts)
}

/// True if the escaped segment leads to a directory whose name begins with `%~=`, in `cuts` directories that hold its
/// begin.
pub fn is_directory(escaped: &[u8], cuts: usize) -> bool {
    segment_of(escaped, Segment::directory).is_some_and(|segment| !segment.is_plain && segment.cut.len() == cuts)
}

fn segment_of(escaped: &[u8], make: fn(&[u8]) -> Segment) -> Option<Segment> {
    text_of(escaped).map(|text| make(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys of 1 to 1,024 bytes with what is odd: slashes, dots, NUL, escapes, long segments.
    fn keys() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => prop::sample::select(vec!["/", "//", "a", "b", "a-", ".", "..", "%~", "%~-", "%~=", "%~+", "\0", "\u{1}", "\u{2}", "é", "日本"])
                .prop_map(str::to_owned),
            1 => "[a-z]{1,20}",
            1 => any::<char>().prop_map(String::from),
            1 => (prop::sample::select(vec!["x", "\u{1}", "é"]), 1usize..300).prop_map(|(text, count)| text.repeat(count)),
        ];
        prop::collection::vec(piece, 1..12).prop_map(|pieces| {
            let mut key: String = pieces.concat();
            while key.len() > KEY_BYTES_MAX {
                key.pop();
            }
            key
        })
    }

    /// All names from the bucket's directory to the file.
    fn names(path: &Path) -> Vec<Name> {
        let of = |segment: &Segment| segment.cut.iter().cloned().chain([segment.name.clone()]).collect::<Vec<_>>();
        path.directories.iter().chain([&path.file]).flat_map(of).collect()
    }

    /// The key to which a path of names leads.
    fn key_of(names: &[Name]) -> Option<String> {
        let (mut key, mut segment, mut cuts) = (Vec::new(), Vec::new(), 0);
        for (at, name) in names.iter().enumerate() {
            let is_last = at + 1 == names.len();
            let whole = |rest: &[u8]| [&segment[..], rest].concat();
            let found = match spelling(name.as_bytes()) {
                Spelling::Plain(plain) if cuts == 0 => escape(plain),
                Spelling::File(rest) if is_last && is_file(&whole(rest), cuts) => whole(rest),
                Spelling::Directory(rest) if !is_last && is_directory(&whole(rest), cuts) => whole(rest),
                Spelling::Cut(rest) if !is_last => {
                    segment.extend(rest);
                    cuts += 1;
                    continue;
                }
                _ => return None,
            };
            key.extend(found);
            (segment, cuts) = (Vec::new(), 0);
            if !is_last {
                key.push(b'/');
            }
        }
        text_of(&key)
    }

    proptest! {
        #[test]
        fn a_key_comes_back_from_its_names(key in keys()) {
            let path = Path::of(&key).unwrap();
            let names = names(&path);
            prop_assert!(names.len() <= KEY_BYTES_MAX + 1);
            prop_assert_eq!(key_of(&names), Some(key.clone()));
            if let Some(alternate) = path.file.alternate() {
                let mut names = names;
                *names.last_mut().unwrap() = alternate;
                prop_assert_eq!(key_of(&names), Some(key));
            }
        }

        #[test]
        fn two_keys_never_meet_and_neither_is_a_directory_of_the_other(one in keys(), two in keys()) {
            prop_assume!(one != two);
            let all = |key: &str| {
                let path = Path::of(key).unwrap();
                let plain = names(&path);
                let mut both = vec![plain.clone()];
                if let Some(alternate) = path.file.alternate() {
                    let mut names = plain;
                    *names.last_mut().unwrap() = alternate;
                    both.push(names);
                }
                both
            };
            for one in all(&one) {
                for two in all(&two) {
                    prop_assert_ne!(&one, &two);
                }
            }
            // Only a plain name can be a directory's too, and then the file has its alternate one.
            let (one, two) = (Path::of(&one).unwrap(), names(&Path::of(&two).unwrap()));
            let file = names(&one);
            prop_assert!(one.file.is_plain || !(two.len() > file.len() && two.starts_with(&file)));
        }

        #[test]
        fn escaping_keeps_order_and_prefixes(one in prop::collection::vec(0u8..4, 0..8), two in prop::collection::vec(0u8..4, 0..8)) {
            let (a, b) = (escape(&one), escape(&two));
            prop_assert_eq!(one.cmp(&two), a.cmp(&b));
            prop_assert_eq!(one.starts_with(&two), a.starts_with(&b));
            prop_assert_eq!(unescape(&a), Some(one));
        }

        #[test]
        fn what_unescapes_is_what_was_escaped(bytes in prop::collection::vec(0u8..5, 0..8)) {
            if let Some(plain) = unescape(&bytes) {
                prop_assert_eq!(escape(&plain), bytes);
            }
        }

        #[test]
        fn names_of_others_lead_to_one_key_or_none(parts in prop::collection::vec("(%~[-=+]?)?[a./\u{1}\u{2}]{0,3}(x{247,252})?", 1..4)) {
            let names: Vec<Name> = parts.iter().filter_map(|part| Name::try_from(&part[..]).ok()).collect();
            if let Some(key) = key_of(&names).filter(|key| !key.is_empty() && key.len() <= KEY_BYTES_MAX) {
                let path = Path::of(&key).unwrap();
                let last = names.last().unwrap();
                let is_found = path.file.name == *last
                    || path.file.alternate().as_ref() == Some(last)
                    || path.file.foreign.as_ref() == Some(last);
                prop_assert!(is_found, "{key:?} from {names:?}");
            }
        }
    }

    #[test]
    fn segments_that_are_no_names_are_escaped() {
        let text = |key: &str| {
            let names = names(&Path::of(key).unwrap());
            names.iter().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()).collect::<Vec<_>>().join("/")
        };
        assert_eq!(text("a/b"), "a/b");
        assert_eq!(text("a//b/"), "a/%~=/b/%~-");
        assert_eq!(text("../..x/."), "%~=../..x/%~-.");
        assert_eq!(text("/"), "%~=/%~-");
        assert_eq!(text("%~-a/%~-a"), "%~=%~-a/%~-%~-a");
        assert_eq!(text("a\0/\u{1}"), "%~=a\u{1}\u{1}/%~-\u{1}\u{2}");
        let long = "y".repeat(600);
        let part = "y".repeat(249);
        assert_eq!(text(&format!("{long}/b")), format!("%~+{part}/%~+{part}/%~={}/b", "y".repeat(102)));
        assert_eq!(text(&long[..252]), &long[..252]);
        // What fits into one name is not cut.
        assert_eq!(text(&format!("{}\u{1}", &long[..247])), format!("%~-{}\u{1}\u{2}", &long[..247]));
        assert_eq!(text(&format!("{}\u{1}", &long[..248])), format!("%~+{}\u{1}/%~-\u{2}", &long[..248]));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert_eq!(Path::of(""), Err(BadKey::Empty));
        assert_eq!(Path::of(&"é".repeat(513)), Err(BadKey::TooLong));
        assert!(Path::of(&"/".repeat(1024)).is_ok());
    }

    #[test]
    fn a_name_that_can_be_its_segment_is_found_first() {
        let long = "z".repeat(254);
        assert_eq!(Segment::file(long.as_bytes()).foreign, Name::try_from(&long[..]).ok());
        assert_eq!(Segment::file(b"a\x01").foreign, Name::try_from("a\u{1}").ok());
        assert_eq!(Segment::file(b"%~x").foreign, None);
        assert_eq!(Segment::file(b"..").foreign, None);
    }

    #[test]
    fn names_that_no_key_has_are_none_of_a_key() {
        assert_eq!(spelling(b"%~+short"), Spelling::None);
        assert_eq!(spelling(b"%~x"), Spelling::None);
        // A segment that is its own name is no directory under another one.
        assert!(!is_directory(b"a", 0) && is_directory(b"%~a", 0) && is_directory(b".", 0));
    }
}
