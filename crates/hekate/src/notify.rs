//! Messages to the service manager: datagrams to the socket that NOTIFY_SOCKET names, as sd_notify(3) describes.
//!
//! Without that variable nothing is sent. A manager that cannot be reached is ignored: clients are served all the same.

use crate::failure::Failure;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Variable that names the socket. A background process does not inherit it, because the manager does not watch that
/// process.
pub const SOCKET: &str = "NOTIFY_SOCKET";

/// Reports that the process is ready and serves.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// Reports that the process is stopping.
pub fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
}

/// Reports progress, which `systemctl status` shows.
pub fn status(status: &str) {
    tell(&format!("STATUS={}", one_line(status)));
}

/// Returns `ran`, after a failure was reported to the manager.
///
/// # Errors
///
/// The failure in `ran`.
pub fn outcome(ran: Result<(), Failure>) -> Result<(), Failure> {
    ran.inspect_err(|failure| status(&failure.text))
}

fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        log::warn!("cannot notify the service manager at {SOCKET}={}: {error}", socket.display());
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address(socket)?).map(|_| ())
}

/// `/PATH`, or `@NAME` of an abstract socket.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(socket),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither /PATH nor @NAME")),
    }
}

/// A line end would begin another assignment.
fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &OsStr, receiver: &UnixDatagram, state: &str) -> String {
        send(socket, state).unwrap();
        let mut buffer = [0; 256];
        let length = receiver.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_socket_with_a_path_gets_the_state() {
        let path = std::env::temp_dir().join(format!("hekate-notify-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        assert_eq!(received(path.as_os_str(), &receiver, "READY=1"), "READY=1");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(send(path.as_os_str(), "READY=1").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_abstract_socket_gets_the_state() {
        let name = format!("hekate-notify-{}", std::process::id());
        let receiver = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        assert_eq!(received(OsStr::new(&format!("@{name}")), &receiver, "STOPPING=1"), "STOPPING=1");
    }

    #[test]
    fn other_addresses_are_refused_and_lines_stay_one() {
        assert_eq!(address(OsStr::new("vsock:2:1234")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(one_line("a\nREADY=1"), "a READY=1");
    }
}
