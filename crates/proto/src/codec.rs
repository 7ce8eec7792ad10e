//! The encoding: fixed widths, little-endian, a `u8` number before the fields of each enum, a `u32` count before
//! lists.
//!
//! Invariants: decoding never panics, and it allocates at most as many elements as bytes are left. Byte strings are
//! slices of the input buffer, not copies. `docs/format/wire.md` describes the encoding.

use bytes::Bytes;

/// The bytes do not encode a value of the requested type; the text says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed bytes: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// A cursor over received bytes.
#[derive(Debug, Clone)]
pub struct Input(Bytes);

impl Input {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Number of bytes left.
    pub fn remaining(&self) -> usize {
        self.0.len()
    }

    /// The next `count` bytes, which share the buffer.
    ///
    /// # Errors
    /// `Malformed` if fewer bytes are left.
    pub fn slice(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.0.len() {
            return Err(Malformed("the input ends before the value does"));
        }
        Ok(self.0.split_to(count))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(&self.slice(N)?);
        Ok(out)
    }
}

/// A value with an encoding.
pub trait Wire: Sized {
    /// Appends the encoding to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes one value.
    ///
    /// # Errors
    /// `Malformed` if the bytes that are left do not begin with the encoding of a value of this type.
    fn take(input: &mut Input) -> Result<Self, Malformed>;

    /// The encoding in a buffer of its own.
    fn to_bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(128);
        self.put(&mut out);
        Bytes::from(out)
    }

    /// Decodes a value that fills `bytes` exactly.
    ///
    /// # Errors
    /// `Malformed` if `bytes` are not the encoding of one value of this type, or more bytes follow it.
    fn from_bytes(bytes: Bytes) -> Result<Self, Malformed> {
        let mut input = Input::new(bytes);
        let value = Self::take(&mut input)?;
        if input.remaining() > 0 {
            return Err(Malformed("bytes follow the value"));
        }
        Ok(value)
    }
}

macro_rules! wire_integer {
    ($($t:ty),*) => {$(
        impl Wire for $t {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn take(input: &mut Input) -> Result<Self, Malformed> {
                Ok(<$t>::from_le_bytes(input.array()?))
            }
        }
    )*};
}
wire_integer!(u8, u16, u32, u64, u128, i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a bool is neither 0 nor 1")),
        }
    }
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        input.slice(count)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        String::from_utf8(Bytes::take(input)?.to_vec()).map_err(|_| Malformed("a text is not UTF-8"))
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        let count = u32::take(input)? as usize;
        // Every element takes at least one byte, so a count above the bytes that are left is refused before anything
        // is allocated.
        if count > input.remaining() {
            return Err(Malformed("the count of a list is higher than the number of bytes left"));
        }
        let mut items = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::take(input)?);
        }
        Ok(items)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(if bool::take(input)? { Some(T::take(input)?) } else { None })
    }
}

impl<T: Wire> Wire for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (**self).put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(Box::new(T::take(input)?))
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => {
                1u8.put(out);
                value.put(out);
            }
            Err(error) => {
                0u8.put(out);
                error.put(out);
            }
        }
    }
    fn take(input: &mut Input) -> Result<Self, Malformed> {
        Ok(match u8::take(input)? {
            1 => Ok(T::take(input)?),
            0 => Err(E::take(input)?),
            _ => return Err(Malformed("a result is neither a value nor an error")),
        })
    }
}

/// Declares a struct whose fields are encoded in order.
#[macro_export]
macro_rules! wire_struct {
    ($($(#[$m:meta])* pub struct $name:ident { $($(#[$fm:meta])* pub $field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$fm])* pub $field: $t),* }

        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn take(input: &mut $crate::codec::Input) -> std::result::Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: <$t as $crate::codec::Wire>::take(input)?),* })
            }
        }
    )*};
}

/// Declares an enum. Each variant has an explicit number, which never changes, and named fields that are encoded in
/// order.
#[macro_export]
macro_rules! wire_enum {
    ($($(#[$m:meta])* pub enum $name:ident {
        $($(#[$vm:meta])* $number:literal = $variant:ident $({ $($(#[$fm:meta])* $field:ident: $t:ty),* $(,)? })?),* $(,)?
    })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name { $($(#[$vm])* $variant $({ $($(#[$fm])* $field: $t),* })?),* }

        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? => {
                        out.push($number);
                        $($($field.put(out);)*)?
                    })*
                }
            }
            fn take(input: &mut $crate::codec::Input) -> std::result::Result<Self, $crate::codec::Malformed> {
                Ok(match <u8 as $crate::codec::Wire>::take(input)? {
                    $($number => Self::$variant $({ $($field: <$t as $crate::codec::Wire>::take(input)?),* })?,)*
                    _ => return Err($crate::codec::Malformed(concat!("an unknown ", stringify!($name)))),
                })
            }
        }
    )*};
}

/// Declares a newtype around an integer, encoded as that integer.
#[macro_export]
macro_rules! wire_newtype {
    ($($(#[$m:meta])* pub struct $name:ident($inner:ty);)*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $crate::codec::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(input: &mut $crate::codec::Input) -> std::result::Result<Self, $crate::codec::Malformed> {
                Ok(Self(<$inner as $crate::codec::Wire>::take(input)?))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}
