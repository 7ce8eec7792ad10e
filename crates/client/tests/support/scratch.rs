// A cluster of one server in this process, in a temporary directory, for tests and the examples in the documentation.
use hekate_brick::{Brick, BrickSettings};
use hekate_client::proto::{BrickId, Incarnation};
use hekate_cluster::{BrickInfo, EmbeddedCoordinator, FIRST_SERVER, Registry};
use hekate_control::VolumeCreate;
use hekate_server::{Node, NodeSettings};
use hekate_transport::{Endpoint, Server};
use std::path::PathBuf;
use std::sync::Arc;

/// A server with three bricks and a volume `v1` of two copies. It can be stopped and started.
pub struct Scratch {
    directory: PathBuf,
    running: Option<(Arc<Node>, Server)>,
}

#[allow(dead_code, clippy::unwrap_used)]
impl Scratch {
    /// `name` distinguishes the scratch clusters of one process.
    pub fn new(name: &str) -> Self {
        Self::wide(name, 1)
    }

    /// The names of directories in the root are spread over `spread` partitions.
    pub fn wide(name: &str, spread: u32) -> Self {
        let directory = std::env::temp_dir().join(format!("hekate-scratch-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (segment_bytes, index_cache_bytes, reserve_bytes) = (8 << 20, 4 << 20, 1 << 20);
        let settings = BrickSettings { journal_segments: 4, segment_bytes, index_cache_bytes, reserve_bytes };
        let bricks: Vec<BrickInfo> = (1..=3u128)
            .map(|number| {
                let path = directory.join(format!("brick{number}"));
                Brick::create(&path, BrickId(number), "scratch", settings).unwrap();
                let directory = path.to_string_lossy().into_owned();
                BrickInfo { brick: BrickId(number), directory, pool: "default".into(), weight: 1, server: FIRST_SERVER, incarnation: Incarnation(0), openings: 0, begun: 0, restored: false, unopened: false }
            })
            .collect();
        let coordinator = EmbeddedCoordinator::create(&directory.join("coordinator.redb")).unwrap();
        let registry = Registry::new(Arc::new(coordinator));
        registry.create_cluster("scratch").unwrap();
        registry.create_pool("default", &bricks).unwrap();
        drop(registry);
        let mut scratch = Self { directory, running: None };
        scratch.start();
        let wanted = VolumeCreate {
            name: "v1".into(),
            pool: "default".into(),
            copies: 2,
            domain: None, min_replicas: None,
            allowed_uids: vec![],
            owner_uid: Some(0),
            spread,
            mode: Default::default(),
            led_by: None,
        };
        scratch.running.as_ref().unwrap().0.make_volume(wanted).unwrap();
        scratch
    }

    /// The socket of the server.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.directory.join("server.sock"))
    }

    pub fn start(&mut self) {
        let node = Node::start(&NodeSettings { state: self.directory.clone(), without: Vec::new() }, &|_| ()).unwrap();
        let server = Server::new(node.clone());
        server.listen(&self.endpoint(), "").unwrap();
        self.running = Some((node, server));
    }

    /// Stops the server without a checkpoint.
    pub fn stop(&mut self) {
        std::fs::remove_file(self.directory.join("server.sock")).unwrap();
        self.end();
    }

    /// Writes a checkpoint of all bricks.
    pub fn checkpoint(&self) {
        self.running.as_ref().unwrap().0.checkpoint_all().unwrap();
    }

    /// Waits until the last thread has released the node: until then its bricks are locked.
    fn end(&mut self) {
        let Some((node, server)) = self.running.take() else { return };
        server.stop();
        drop(server);
        node.stop_housekeeping();
        while Arc::strong_count(&node) > 1 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
