//! Members of etcd in processes of their own, in a directory that is removed with them.

use hekate_cluster::Coordinator;
use hekate_etcd::{Credential, Endpoints, EtcdCoordinator, Members};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Members of one etcd.
pub struct Etcd {
    pub directory: PathBuf,
    pub members: Vec<Member>,
    pub credential: Credential,
}

/// A member.
pub struct Member {
    pub client: String,
    arguments: Vec<String>,
    process: Option<Child>,
    log: PathBuf,
}

impl Member {
    pub fn run(&mut self) {
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let process = Command::new("etcd").args(&self.arguments).stdout(Stdio::null()).stderr(log).spawn();
        self.process = Some(process.expect("etcd is not installed: apt-get install etcd-server"));
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    pub fn pid(&self) -> String {
        self.process.as_ref().unwrap().id().to_string()
    }

    /// Sends a signal: `STOP` cuts the member off, `CONT` ends that.
    pub fn signal(&self, name: &str) {
        run("kill", &[&format!("-{name}"), &self.pid()]);
    }

    /// Host and port for clients.
    pub fn address(&self) -> &str {
        self.client.split_once("://").unwrap().1
    }

    pub fn endpoints(&self) -> Endpoints {
        Endpoints::parse(&self.client).unwrap()
    }
}

/// Runs a program that has to succeed. Returns what it prints.
pub fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asks until the answer is yes.
pub fn eventually(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

impl Etcd {
    pub fn start(name: &str, count: usize) -> Self {
        Self::start_with(name, count, |_| (Vec::new(), Credential::default()))
    }

    /// `options` makes further options of the members, and the credential of clients, in a directory of theirs. With a
    /// credential clients use https.
    pub fn start_with(name: &str, count: usize, options: impl Fn(&Path) -> (Vec<String>, Credential)) -> Self {
        let directory = std::env::temp_dir().join(format!("hekate-etcd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let (options, credential) = options(&directory);
        let scheme = if credential.ca.is_empty() { "http" } else { "https" };
        let ports = free_ports(2 * count);
        let peer = |number: usize| format!("http://127.0.0.1:{}", ports[2 * number]);
        let all: Vec<_> = (0..count).map(|number| format!("m{number}={}", peer(number))).collect();
        let member = |number: usize| {
            let client = format!("{scheme}://127.0.0.1:{}", ports[2 * number + 1]);
            let words = [
                ("--name", format!("m{number}")),
                ("--data-dir", directory.join(format!("m{number}")).display().to_string()),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client.clone()),
                ("--listen-peer-urls", peer(number)),
                ("--initial-advertise-peer-urls", peer(number)),
                ("--initial-cluster", all.join(",")),
            ];
            let arguments = words.into_iter().flat_map(|(option, value)| [option.to_string(), value]);
            let arguments = arguments.chain(options.iter().cloned()).collect();
            let log = directory.join(format!("m{number}.log"));
            Member { client, arguments, process: None, log }
        };
        let mut etcd = Self { members: (0..count).map(member).collect(), directory, credential };
        etcd.members.iter_mut().for_each(Member::run);
        etcd.wait();
        etcd
    }

    pub fn endpoints(&self) -> Endpoints {
        let all: Vec<_> = self.members.iter().map(|member| member.client.clone()).collect();
        Endpoints::parse(&all.join(",")).unwrap()
    }

    pub fn connect(&self) -> EtcdCoordinator {
        EtcdCoordinator::new(self.endpoints(), &self.credential).unwrap()
    }

    /// Waits until etcd answers.
    pub fn wait(&self) {
        let coordinator = self.connect();
        eventually("etcd starts", Duration::from_secs(30), || coordinator.get("/x").is_ok());
    }

    /// The number of the member that leads.
    pub fn leader(&self) -> usize {
        let members = Members::new(self.endpoints(), &self.credential).unwrap();
        let mut found = None;
        eventually("a leader", Duration::from_secs(10), || {
            let Ok(all) = members.list() else { return false };
            let states = self.members.iter().filter_map(|member| members.state(&member.client).ok());
            let led = states.filter(|state| !state.leader.is_empty() && state.leader != "0").map(|state| state.leader);
            let leader = led.last().and_then(|id| all.into_iter().find(|member| member.id == id));
            let of = |leader: &hekate_etcd::Member| {
                self.members.iter().position(|member| leader.clients.contains(&member.client))
            };
            found = leader.as_ref().and_then(of);
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
