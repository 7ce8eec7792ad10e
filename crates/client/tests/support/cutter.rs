// Forwards a client's connections to a server, and breaks one on request: after an op was sent, before its reply.
use hekate_client::proto::{Op, Request, Wire};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;

type Which = fn(&Op) -> bool;

/// A proxy that breaks connections.
#[allow(dead_code)]
pub struct Cutter {
    path: PathBuf,
    cut: Arc<Mutex<Option<Which>>>,
}

#[allow(dead_code, clippy::unwrap_used)]
impl Cutter {
    /// Forwards to the socket `server`; clients connect at `path`.
    pub fn new(server: &Path, path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let cut: Arc<Mutex<Option<Which>>> = Arc::default();
        let (server, armed) = (server.to_path_buf(), cut.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                match UnixStream::connect(&server) {
                    Ok(server) => pass(client, server, armed.clone()),
                    Err(_) => _ = client.shutdown(Shutdown::Both),
                }
            }
        });
        Self { path, cut }
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }

    /// Forwards the next op of this kind and drops its reply.
    pub fn cut_next(&self, which: Which) {
        *self.cut.lock().unwrap() = Some(which);
    }

    /// True if the connection of that op was broken.
    pub fn has_cut(&self) -> bool {
        self.cut.lock().unwrap().is_none()
    }
}

#[allow(dead_code, clippy::unwrap_used)]
fn pass(client: UnixStream, server: UnixStream, armed: Arc<Mutex<Option<Which>>>) {
    let doomed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ends = |a: &UnixStream, b: &UnixStream| (a.try_clone().unwrap(), b.try_clone().unwrap());
    let (mut from, mut to) = ends(&client, &server);
    let marked = doomed.clone();
    std::thread::spawn(move || {
        while let Some(frame) = read_frame(&mut from) {
            let requests = Vec::<Request>::from_bytes(frame[16..].to_vec().into());
            let mut armed = armed.lock().unwrap();
            let is_it = |request: &Request| armed.is_some_and(|which| which(&request.op));
            if frame[4] == 4 && requests.is_ok_and(|requests| requests.iter().any(is_it)) {
                *armed = None;
                marked.store(true, std::sync::atomic::Ordering::SeqCst);
            }
            drop(armed);
            if to.write_all(&frame).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (server, client);
    std::thread::spawn(move || {
        while let Some(frame) = read_frame(&mut from) {
            if doomed.load(std::sync::atomic::Ordering::SeqCst) || to.write_all(&frame).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

#[allow(dead_code)]
fn read_frame(from: &mut UnixStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 16];
    from.read_exact(&mut frame).ok()?;
    let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
    frame.resize(16 + length, 0);
    from.read_exact(&mut frame[16..]).ok()?;
    Some(frame)
}
