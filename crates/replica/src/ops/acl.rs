//! POSIX ACLs (acl(5)) in the kernel's format of extended attributes: version 2, then entries of tag, permissions and
//! id.
//!
//! The kernel checks access. This file keeps a mode and its ACL consistent, and gives new inodes their directory's
//! defaults.

use crate::ops::step::{Ask, Commit, Here, Next, Stepped};
use crate::ops::stubs;
use crate::ops::tree::{Tree, later};
use bytes::Bytes;
use hekate_proto::*;

/// The ACL of an inode.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The default ACL of a directory, which new inodes in it inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Some 500 entries, as ext4 accepts. A directory's default ACL is in each record that makes a name in the directory.
const ACL_BYTES_MAX: usize = 4096;
const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const SET_GROUP_ID: u16 = 0o2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid ACL: one entry each for owner, group and others, and a mask if it names users or groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Decodes the value of an extended attribute.
    ///
    /// # Errors
    ///
    /// `Invalid` if acl(5) does not permit it.
    pub fn parse(bytes: &[u8]) -> Stepped<Self> {
        let invalid = || Error::invalid("an ACL that acl(5) does not permit");
        let (version, entries) = bytes.split_at_checked(4).ok_or_else(invalid)?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if version != VERSION.to_le_bytes() || !rest.is_empty() {
            return Err(invalid().into());
        }
        let entry = |[a, b, c, d, id @ ..]: &[u8; ENTRY_BYTES]| AclEntry {
            tag: u16::from_le_bytes([*a, *b]),
            perm: u16::from_le_bytes([*c, *d]),
            id: u32::from_le_bytes(*id),
        };
        let acl = Self(entries.iter().map(entry).collect());
        if acl.is_valid() { Ok(acl) } else { Err(invalid().into()) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        let in_order = self.0.is_sorted_by_key(|entry| entry.tag);
        in_order
            && self.0.iter().all(|entry| known.contains(&entry.tag) && entry.perm <= 7)
            && [USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    fn encode(&self) -> Bytes {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, perm, id } in &self.0 {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&perm.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes.into()
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    /// The tag whose permissions the mode shows as the group's.
    fn group_tag(&self) -> u16 {
        if self.perm(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// The mode's bits 0o777 that correspond to the ACL.
    fn mode(&self) -> u16 {
        let perm = |tag| self.perm(tag).unwrap_or(0);
        perm(USER_OBJ) << 6 | perm(self.group_tag()) << 3 | perm(OTHER)
    }

    /// True if the mode expresses all of the ACL.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The ACL after chmod. With `and`, permissions that the mode lacks are removed and none are added, as for a new
    /// inode.
    fn with_mode(mut self, mode: u16, and: bool) -> Self {
        let group = self.group_tag();
        for entry in &mut self.0 {
            let bits = match entry.tag {
                USER_OBJ => mode >> 6 & 7,
                OTHER => mode & 7,
                tag if tag == group => mode >> 3 & 7,
                _ => continue,
            };
            entry.perm = if and { entry.perm & bits } else { bits };
        }
        self
    }

    /// The value of the attribute. Empty if the mode expresses the ACL.
    fn value(&self) -> Bytes {
        if self.is_minimal() { Bytes::new() } else { self.encode() }
    }
}

/// The permissions of a new inode.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Birth {
    /// The mode.
    pub mode: u16,
    /// The ACL. Empty if the mode expresses it.
    pub access: Bytes,
    /// The default ACL of a new directory. Empty if it has none.
    pub default: Bytes,
}

impl Birth {
    /// True if the inode needs extended attributes for its ACLs.
    pub fn has_acl(&self) -> bool {
        !self.access.is_empty() || !self.default.is_empty()
    }
}

/// The permissions of a new inode in a directory with this default ACL. If that is empty, the umask applies.
pub fn birth(default: &Bytes, mode: u16, umask: u16, is_directory: bool) -> Stepped<Birth> {
    if default.is_empty() {
        let (access, default) = Default::default();
        return Ok(Birth { mode: mode & !(umask & 0o777), access, default });
    }
    let acl = Acl::parse(default)?.with_mode(mode, true);
    let default = if is_directory { default.clone() } else { Bytes::new() };
    Ok(Birth { mode: mode & 0o7000 | acl.mode(), access: acl.value(), default })
}

/// The changes that set a new inode's ACLs.
pub fn born(ask: &Ask, id: InodeId, birth: &Birth) -> impl Iterator<Item = Change> {
    let given = [(ACCESS, birth.access.clone()), (DEFAULT, birth.default.clone())];
    let (ring, volume) = (ask.ring, ask.volume);
    let put = move |(name, value)| Change::Put { key: Key::xattr(ring, volume, id, name), value };
    given.into_iter().filter(|(_, value)| !value.is_empty()).map(put)
}

/// Makes the ACL follow the mode after chmod.
pub fn follow_mode(tree: &Tree, commit: &mut Commit, id: InodeId, mode: u16) -> Stepped<()> {
    if let Some(value) = tree.xattr(id, ACCESS)? {
        let value = Acl::parse(&value)?.with_mode(mode, false).encode();
        commit.changes.push(Change::Put { key: tree.xattr_key(id, ACCESS), value });
    }
    Ok(())
}

/// True for the extended attributes that hold ACLs.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// Sets an ACL, or removes it if `value` is `None`. The mode follows, and the stubs of a directory too.
pub fn set(here: &mut Here, id: InodeId, name: &Bytes, value: Option<&Bytes>, drop_set_group: bool) -> Stepped<Next> {
    let tree = here.tree();
    if value.is_some_and(|value| value.len() > ACL_BYTES_MAX) {
        return Err(Error::AttributeTooLarge.into());
    }
    let before = tree.inode(id)?;
    let mut inode = before.clone();
    if inode.kind == NodeKind::Symlink {
        return Err(Error::NotSupported { what: "ACLs of symbolic links".into() }.into());
    }
    let acl = value.filter(|value| value.len() > 4).map(|value| Acl::parse(value)).transpose()?;
    let mut commit = Commit { reply: Some(Reply::Done), ..Commit::default() };
    let value = if &name[..] == ACCESS {
        if let Some(acl) = &acl {
            inode.mode = inode.mode & 0o7000 | acl.mode();
        }
        if drop_set_group {
            inode.mode &= !SET_GROUP_ID;
        }
        acl.map(|acl| acl.value()).unwrap_or_default()
    } else if inode.kind == NodeKind::Directory {
        acl.map(|acl| acl.encode()).unwrap_or_default()
    } else if acl.is_none() {
        return Ok(Next::Reply(Reply::Done));
    } else {
        return Err(Error::NoAccess { what: "a default ACL on an inode that is no directory".into() }.into());
    };
    if value.is_empty() && inode == before && tree.xattr(id, name)?.is_none() {
        return Ok(Next::Reply(Reply::Done));
    }
    inode.has_xattrs |= !value.is_empty();
    inode.ctime = later(here.now, inode.ctime);
    inode.change += 1;
    let mut legs = Vec::new();
    if inode.kind == NodeKind::Directory {
        let mut stub = tree.open_stub(id)?;
        stub.mode = inode.mode;
        if &name[..] == DEFAULT {
            stub.default_acl = value.clone();
        }
        if stub.spread > 1 {
            stubs::hold(here, id, stub.spread)?;
            legs = stubs::set(id, &stub, None);
        }
        commit.put(tree.stub_key(id), &stub);
    }
    commit.put(tree.key(id, Kind::Inode), &inode);
    let key = tree.xattr_key(id, name);
    match value.is_empty() {
        true => commit.delete(key),
        false => commit.changes.push(Change::Put { key, value }),
    }
    Ok(Next::Commit(commit, legs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|(tag, perm, id)| AclEntry { tag: *tag, perm: *perm, id: *id }).collect())
    }

    fn named() -> Acl {
        acl(&[(USER_OBJ, 7, !0), (USER, 6, 1000), (GROUP_OBJ, 5, !0), (MASK, 6, !0), (OTHER, 0, !0)])
    }

    #[test]
    fn an_acl_survives_its_encoding_and_shows_its_mask_as_the_groups_bits() {
        assert_eq!(Acl::parse(&named().encode()).unwrap(), named());
        assert_eq!(named().mode(), 0o760);
        assert_eq!(acl(&[(USER_OBJ, 6, !0), (GROUP_OBJ, 4, !0), (OTHER, 4, !0)]).mode(), 0o644);
    }

    #[test]
    fn what_acl_5_does_not_know_is_refused() {
        let short = &named().encode()[..11];
        let no_mask = acl(&[(USER_OBJ, 7, !0), (USER, 6, 1000), (GROUP_OBJ, 5, !0), (OTHER, 0, !0)]).encode();
        let no_other = acl(&[(USER_OBJ, 7, !0), (GROUP_OBJ, 5, !0)]).encode();
        let unordered = acl(&[(GROUP_OBJ, 5, !0), (USER_OBJ, 7, !0), (OTHER, 0, !0)]).encode();
        let too_much = acl(&[(USER_OBJ, 9, !0), (GROUP_OBJ, 5, !0), (OTHER, 0, !0)]).encode();
        let version = [1, 0, 0, 0];
        for bytes in [short, &no_mask, &no_other, &unordered, &too_much, &version, &[]] {
            assert!(Acl::parse(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn chmod_changes_the_mask_and_not_the_group() {
        let changed = named().with_mode(0o640, false);
        assert_eq!((changed.perm(MASK), changed.perm(GROUP_OBJ), changed.mode()), (Some(4), Some(5), 0o640));
    }

    #[test]
    fn without_a_default_acl_the_umask_counts_and_with_one_it_does_not() {
        assert_eq!(birth(&Bytes::new(), 0o2777, 0o7022, true).unwrap().mode, 0o2755);
        let default = named().encode();
        let file = birth(&default, 0o666, 0o077, false).unwrap();
        assert_eq!((file.mode, file.default), (0o660, Bytes::new()));
        assert_eq!(Acl::parse(&file.access).unwrap().perm(USER_OBJ), Some(6));
        assert_eq!(birth(&default, 0o777, 0, true).unwrap().default, default);
        let minimal = acl(&[(USER_OBJ, 7, !0), (GROUP_OBJ, 5, !0), (OTHER, 5, !0)]).encode();
        assert_eq!(birth(&minimal, 0o666, 0o777, false).unwrap(), Birth { mode: 0o644, ..Birth::default() });
    }
}
