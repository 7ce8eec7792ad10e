//! A TCP proxy to one endpoint of etcd, which loses what it is told to lose.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::spawn;

/// What the proxy does with bytes. It changes for connections that exist, too.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    Forwards,
    /// Requests arrive, answers do not.
    SwallowsAnswers,
    /// Requests arrive, and the connection ends instead of an answer.
    EndsAnswers,
    /// Connections end, and new ones end at once.
    IsCut,
}

pub struct Proxy {
    pub endpoint: String,
    mode: Arc<AtomicU8>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    /// `target`: host and port.
    pub fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mode = Arc::new(AtomicU8::new(Mode::Forwards as u8));
        let connections = Arc::new(Mutex::new(Vec::new()));
        let proxy = Self { endpoint, mode: mode.clone(), connections: connections.clone() };
        let target = target.to_string();
        spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if is(&mode, Mode::IsCut) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&target) else { continue };
                connections.lock().unwrap().push(client.try_clone().unwrap());
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                spawn(move || copy(from, to, |_| true));
                let mode = mode.clone();
                spawn(move || copy(server, client, |to| passes(&mode, to)));
            }
        });
        proxy
    }

    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
        if mode == Mode::IsCut {
            for connection in self.connections.lock().unwrap().drain(..) {
                let _ = connection.shutdown(Shutdown::Both);
            }
        }
    }
}

fn is(mode: &AtomicU8, expected: Mode) -> bool {
    mode.load(Ordering::SeqCst) == expected as u8
}

/// True if an answer is passed on.
fn passes(mode: &AtomicU8, to: &TcpStream) -> bool {
    if is(mode, Mode::EndsAnswers) {
        let _ = to.shutdown(Shutdown::Both);
    }
    is(mode, Mode::Forwards)
}

fn copy(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&TcpStream) -> bool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if passes(&to) && to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
