//! Mounting as an ordinary user: the set-user-id program fusermount3 mounts, and sends the descriptor of /dev/fuse
//! over a socket whose number is in `_FUSE_COMMFD` (libfuse, doc/fusermount3.1).

use super::busy;
use crate::MountOptions;
use crate::device::Device;
use crate::negotiate::IO_BYTES;
use hekate_proto::{Error, Result};
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::io::{ErrorKind, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "fusermount3";
const CONFIGURATION: &str = "/etc/fuse.conf";

/// Mounts, and returns the connection to the kernel.
pub(super) fn attach(volume_name: &str, mount_point: &Path, options: &MountOptions) -> Result<Device> {
    if options.allow_other {
        check_allow_other()?;
    }
    // fusermount3 would mount without these options and report it only on its terminal.
    if options.set_id || options.devices {
        return Err(Error::Denied { what: "suid and dev are allowed in root's mounts only; leave them out".into() });
    }
    let failed = |error: rustix::io::Errno| Error::io("the socket to fusermount3", error.into());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(failed)?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(mount_options(volume_name, options)).arg("--").arg(mount_point);
    // Passed as standard input, the socket reaches the child and no other process.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs)).stderr(Stdio::piped());
    let child = command.spawn().map_err(no_program)?;
    drop(command);
    let device = receive(&ours).map_err(failed)?;
    let complaint = finish(child)?;
    match (device, complaint) {
        (Some(device), None) => Ok(Device(device)),
        (_, Some(complaint)) => Err(Error::Denied { what: format!("mount on {}: {complaint}", mount_point.display()) }),
        (None, None) => Err(Error::Protocol { what: format!("{PROGRAM} sent no descriptor of /dev/fuse") }),
    }
}

pub(super) fn detach(mount_point: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(mount_point);
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(no_program)?;
    match finish(child)? {
        None => Ok(()),
        Some(complaint) if complaint.contains("busy") => Err(busy(mount_point)),
        Some(what) => Err(Error::Denied { what }),
    }
}

/// Options of mount(8), separated by commas. A comma in a value is escaped by a backslash.
fn mount_options(volume_name: &str, options: &MountOptions) -> String {
    let source = volume_name.replace('\\', "\\\\").replace(',', "\\,");
    let mut all = format!("fsname={source},subtype=hekate,default_permissions,max_read={IO_BYTES}");
    for word in super::flags::words(options).chain(options.allow_other.then_some("allow_other")) {
        all.push(',');
        all.push_str(word);
    }
    all
}

/// fusermount3 would refuse too, but without saying how to allow it.
fn check_allow_other() -> Result<()> {
    let configuration = std::fs::read_to_string(CONFIGURATION).unwrap_or_default();
    if allows_others(&configuration) {
        return Ok(());
    }
    Err(Error::Denied {
        what: format!("allow_other needs a line `user_allow_other` in {CONFIGURATION}, which root can add"),
    })
}

fn allows_others(configuration: &str) -> bool {
    configuration.lines().any(|line| line.trim() == "user_allow_other")
}

fn no_program(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::NotSupported {
            what: format!("{PROGRAM} is missing, which mounts for users; as root: apt install fuse3"),
        },
        _ => Error::io(format!("start {PROGRAM}"), error),
    }
}

/// The descriptor, or `None` if the program ended without sending one.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC))?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Waits for the program to end. Returns what it wrote to standard error, if it failed.
fn finish(mut child: Child) -> Result<Option<String>> {
    let failed = |error| Error::io(format!("wait for {PROGRAM}"), error);
    let mut complaint = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut complaint).map_err(failed)?;
    }
    let status = child.wait().map_err(failed)?;
    Ok((!status.success()).then(|| format!("{} ({status})", complaint.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::IoSlice;

    #[test]
    fn a_comma_in_a_name_does_not_end_the_option() {
        let options = MountOptions { read_only: true, execute: false, allow_other: true, ..Default::default() };
        let all = mount_options("a,b\\c", &options);
        assert!(all.starts_with("fsname=a\\,b\\\\c,subtype=hekate,"), "{all}");
        assert!(all.ends_with(",ro,noexec,allow_other"), "{all}");
    }

    #[test]
    fn a_comment_allows_nothing() {
        assert!(!allows_others("#user_allow_other\n# user_allow_other - text\n"));
        assert!(allows_others("mount_max = 5\n  user_allow_other  \n"));
    }

    #[test]
    fn a_descriptor_is_received_and_its_absence_noticed() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (ours, theirs) = pair();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sent = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(&theirs, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        assert!(receive(&ours).unwrap().is_some());
        let (ours, theirs) = pair();
        drop(theirs);
        assert!(receive(&ours).unwrap().is_none());
    }
}
