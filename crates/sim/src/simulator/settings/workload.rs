//! What a run consists of: machines and bricks, what clients call, and the weights of faults.

use hekate_brick::BrickSettings;
use hekate_brick::storage::Random;

/// Microseconds of simulated time.
pub type Micros = u64;

/// Weights of the kinds of faults; 0: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultSettings {
    /// Mean time between two faults; 0: no faults.
    pub every: Micros,
    pub kill: u64,
    pub power_cut: u64,
    pub power_cut_all: u64,
    pub network_cut: u64,
    pub link_reset: u64,
    pub full_disk: u64,
    pub failed_sync: u64,
    pub client_death: u64,
    pub connection_cut: u64,
    /// A server cannot reach the coordinator for a while.
    pub coordinator_cut: u64,
    /// A process is paused, for longer than its lease or not.
    pub pause: u64,
    /// Packets between two machines are lost in one direction.
    pub one_way_cut: u64,
    /// A server's clock is set forward or back.
    pub clock_jump: u64,
    /// A bit of a data file flips, or a write to one lands elsewhere.
    pub rot: u64,
    /// A disk is copied, and later replaced by the copy.
    pub older_copy: u64,
    /// A disk is lost for good, and an empty one takes its place.
    pub wipe: u64,
    /// A server reaches no other server, nor the coordinator, for longer than its lease; clients still reach it.
    pub split: u64,
    /// Bits flip in a part of a journal that a checkpoint has covered.
    pub journal_rot: u64,
    /// All processes die, but no machine does.
    pub kill_all: u64,
    /// A client's process is paused, for longer than its session or not.
    pub client_pause: u64,
    /// A client reaches no server, for longer than its session or not.
    pub client_cut: u64,
    /// A connection for notifications is cut.
    pub listener_cut: u64,
}

impl FaultSettings {
    /// The weights, in the order of `World::fault`.
    pub fn weights(&self) -> [u64; 22] {
        [
            self.kill,
            self.power_cut,
            self.power_cut_all,
            self.network_cut,
            self.link_reset,
            self.full_disk,
            self.failed_sync,
            self.client_death,
            self.connection_cut,
            self.coordinator_cut,
            self.pause,
            self.one_way_cut,
            self.clock_jump,
            self.rot,
            self.older_copy,
            self.wipe,
            self.split,
            self.journal_rot,
            self.kill_all,
            self.client_pause,
            self.client_cut,
            self.listener_cut,
        ]
    }
}

/// Machines, bricks, the calls of clients, and faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub seed: u64,
    pub machines: u32,
    pub servers: u32,
    pub bricks_per_server: u32,
    pub copies: u32,
    pub partitions: u32,
    /// Most partitions that share the names of a directory.
    pub spread_max: u32,
    pub brick: BrickSettings,
    pub clients: u32,
    pub calls_per_client: u32,
    /// Names that a directory may have; also the most directories that clients know.
    pub names: u64,
    pub directories: usize,
    /// Calls about bytes and attributes, in percent; the others are about names.
    pub data_share: u64,
    /// Changes that ask for stable storage, in percent.
    pub durable_share: u64,
    /// Calls about the bytes of the client's own file, mostly durable overwrites, in percent.
    pub overwrites: u64,
    /// Blocks of a file in which these begin.
    pub blocks: u64,
    /// Reads among these, in percent.
    pub reads: u64,
    /// Durable overwrites, in percent of all overwrites.
    pub durable_overwrites: u64,
    /// Look-ups of names and attributes, in percent of all calls.
    pub looks: u64,
    /// Writes that make the client's own file longer, in percent.
    pub grows: u64,
    /// Clients add to a word of a file that all of them map.
    pub maps: bool,
    /// One killed server in two is started again at once.
    pub restarts_at_once: bool,
    /// All clients but the first call seldom, so that it is mostly alone with its file; nearly all its overwrites are
    /// durable.
    pub visitors: bool,
    /// When a client's write loses its connection, another client reads and overwrites the same bytes at once.
    pub rivals: bool,
    /// Faults wait until a fast write or a leg is in flight, and then come in pairs.
    pub ambush: bool,
    /// Largest rate difference of a server's clock, per 1,000.
    pub drift: u64,
    pub faults: FaultSettings,
}

/// Largest rate difference per 1,000 at which two clocks differ by at most a twentieth: 1.024 / 0.976.
pub(super) const DRIFT_MAX: u64 = 24;

pub(super) fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

impl Workload {
    /// The workload of a seed.
    pub fn of(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x5e77_1465);
        let servers = pick(random, &[1, 2, 3, 3, 4, 5]);
        let machines = if random.once_in(4) { 1 + random.below(u64::from(servers)) as u32 } else { servers };
        let bricks_per_server = pick(random, &[1, 1, 2, 3]);
        let copies = pick(random, &[1, 2, 2, 3, 3, 4, 5]).min(servers * bricks_per_server);
        let data_share = pick(random, &[0, 20, 50, 50, 90]);
        let (later, drift) = later_faults(seed);
        let overwrites = pick(&mut Random::new(seed ^ 0xfa57_1a9e), &[0, 0, 50, 90]);
        let durable_overwrites = durable_overwrites(seed, 85);
        Self {
            seed,
            machines,
            servers,
            bricks_per_server,
            copies,
            partitions: pick(random, &[1, 2, 4, 4, 8, 16]),
            spread_max: pick(random, &[1, 1, 2, 8, 8]),
            brick: BrickSettings {
                journal_segments: pick(random, &[4, 4, 5, 8]),
                segment_bytes: pick(random, &[128 << 10, 128 << 10, 256 << 10]),
                index_cache_bytes: 256 << 10,
                reserve_bytes: pick(random, &[128 << 10, 256 << 10]),
            },
            clients: pick(random, &[1, 2, 3, 3, 4, 5]),
            calls_per_client: pick(random, &[20, 30, 40]) + if overwrites > 0 { 40 } else { 0 },
            names: pick(random, &[2, 3, 4]),
            directories: pick(random, &[1, 2, 3, 4]),
            data_share,
            durable_share: pick(random, &[0, 10, 50, 100]),
            overwrites,
            blocks: 5,
            reads: 0,
            durable_overwrites,
            looks: 0,
            grows: 0,
            maps: false,
            restarts_at_once: false,
            visitors: false,
            rivals: false,
            ambush: false,
            faults: fault_settings(random, later),
            drift,
        }
    }
}

/// The percentage of durable overwrites: one run in two has few others.
pub(super) fn durable_overwrites(seed: u64, most: u64) -> u64 {
    let random = &mut Random::new(seed ^ 0x0010_05e0);
    if random.once_in(2) { pick(random, &[15, 50, most]) } else { most }
}

/// Weights of further faults, and the rate differences of clocks. They have a generator of their own, so that the other
/// settings of a seed do not depend on them.
fn later_faults(seed: u64) -> (FaultSettings, u64) {
    let late = &mut Random::new(seed ^ 0x9a05_e000);
    let (pause, one_way_cut) = (pick(late, &[0, 0, 2]), pick(late, &[0, 0, 2]));
    let disks = &mut Random::new(seed ^ 0xd15c_0000);
    let (clock_jump, drift) = (pick(disks, &[0, 0, 2]), pick(disks, &[0, DRIFT_MAX]));
    let (rot, older_copy, wipe) = (pick(disks, &[0, 4, 12]), pick(disks, &[0, 0, 3]), pick(disks, &[0, 0, 3]));
    let journals = &mut Random::new(seed ^ 0x10c5_0000);
    let (journal_rot, kill_all) = (pick(journals, &[0, 0, 3]), pick(journals, &[0, 0, 1]));
    let faults = FaultSettings {
        pause,
        one_way_cut,
        clock_jump,
        rot,
        older_copy,
        wipe,
        journal_rot,
        kill_all,
        ..FaultSettings::default()
    };
    (faults, drift)
}

fn fault_settings(random: &mut Random, later: FaultSettings) -> FaultSettings {
    let mut weight = |greatest: u64| if random.once_in(3) { 0 } else { 1 + random.below(greatest) };
    let (kill, power_cut, power_cut_all) = (weight(6), weight(4), weight(2));
    let (network_cut, link_reset, full_disk) = (weight(3), weight(3), weight(2));
    let (failed_sync, client_death, connection_cut) = (weight(2), weight(2), weight(6));
    FaultSettings {
        every: pick(random, &[0, 20_000, 60_000, 150_000]),
        kill,
        power_cut,
        power_cut_all,
        network_cut,
        link_reset,
        full_disk,
        failed_sync,
        client_death,
        connection_cut,
        coordinator_cut: 1,
        ..later
    }
}
