//! Narrow runs: one partition, one or two files, and a few kinds of faults, so that rare events coincide more often. A
//! run that leaves most things out finds faults that a run of everything does not (Groce, Zhang, Eide, Chen and Regehr,
//! *Swarm Testing*, ISSTA 2012).

use super::workload::{DRIFT_MAX, FaultSettings, Micros, Workload, durable_overwrites, pick};
use hekate_brick::storage::Random;

/// Number of themes; a narrow run's theme is its seed modulo this.
const THEMES: u64 = 4;

impl Workload {
    /// The workload of a narrow run about names: few names in few directories on several partitions, so that most changes
    /// have legs, conflict with others, and are retried.
    pub fn narrow_names(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_4a3e);
        let narrow = Self::narrow(seed);
        Self {
            partitions: pick(random, &[2, 2, 4]),
            spread_max: pick(random, &[1, 2, 2]),
            clients: pick(random, &[2, 3, 4]),
            visitors: false,
            calls_per_client: 60,
            names: pick(random, &[2, 2, 3]),
            directories: pick(random, &[1, 2, 3]),
            data_share: pick(random, &[0, 10, 40]),
            durable_share: pick(random, &[0, 50, 100]),
            overwrites: 0,
            ..narrow
        }
    }

    /// The workload of a narrow run about rivals: other clients read and write the same few blocks, so that late and
    /// repeated writes meet writes that others have made since.
    pub fn narrow_rivals(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_71fa);
        let narrow = Self::narrow(seed);
        let durable_overwrites = durable_overwrites(seed, 97);
        Self {
            durable_overwrites,
            partitions: 1,
            clients: pick(random, &[2, 3, 4]),
            visitors: true,
            calls_per_client: 160,
            names: 1,
            overwrites: 98,
            blocks: pick(random, &[1, 1, 2]),
            reads: pick(random, &[20, 40, 60]),
            faults: FaultSettings { connection_cut: narrow.faults.connection_cut + 2, ..narrow.faults },
            ..narrow
        }
    }

    /// The workload of a narrow run about late messages: faults come while a write is in flight, another client reads and
    /// overwrites the same bytes before the writer notices, and copies of the write arrive after they were given up.
    pub fn narrow_late(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_1a7e);
        let rivals = Self::narrow_rivals(seed);
        let kill = 1 + random.below(3);
        Self {
            clients: pick(random, &[3, 4]),
            calls_per_client: pick(random, &[16, 16, 80]),
            blocks: pick(random, &[1, 2, 5]),
            reads: pick(random, &[10, 30]),
            rivals: true,
            ambush: true,
            durable_overwrites: rivals.durable_overwrites,
            faults: FaultSettings { kill: rivals.faults.kill.max(kill), ..rivals.faults },
            ..rivals
        }
    }

    /// The workload of a narrow run about legs: a server drives an op over partitions, cannot send, and is excluded from
    /// the view meanwhile.
    pub fn narrow_legs(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_1e65);
        let names = Self::narrow_names(seed);
        Self {
            machines: 3,
            servers: 3,
            copies: 2,
            ambush: true,
            faults: FaultSettings {
                every: pick(random, &[40_000, 100_000, 200_000]),
                one_way_cut: 3,
                coordinator_cut: 3,
                ..faults(0, random)
            },
            ..names
        }
    }

    /// The workload of a narrow run about a split server: it serves clients that reach it until its lease ends, while the
    /// other servers form views without it, and clocks run at different rates.
    pub fn narrow_splits(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_5b17);
        let rivals = Self::narrow_rivals(seed);
        let every = pick(random, &[200_000, 400_000]);
        Self {
            clients: pick(random, &[2, 3, 4]),
            visitors: random.once_in(2),
            reads: pick(random, &[40, 60, 80]),
            drift: pick(random, &[0, DRIFT_MAX]),
            faults: FaultSettings {
                split: 6,
                connection_cut: 1,
                kill: random.below(2),
                every,
                ..FaultSettings::default()
            },
            ..rivals
        }
    }

    /// The workload of a narrow run about journals: records that a checkpoint has covered are damaged, and then members
    /// that died must be fed from them.
    pub fn narrow_journals(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_10c5);
        let narrow = Self::narrow(seed);
        Self {
            blocks: 5,
            faults: FaultSettings {
                every: pick(random, &[20_000, 60_000, 150_000]),
                journal_rot: 6,
                kill_all: pick(random, &[1, 3]),
                kill: 1 + random.below(3),
                pause: random.below(2),
                network_cut: random.below(3),
                power_cut: random.below(3),
                power_cut_all: random.below(2),
                wipe: random.below(2),
                ..FaultSettings::default()
            },
            ..narrow
        }
    }

    /// The workload of a narrow run about vDisks: two or three clients take a vDisk from each other, are paused and cut
    /// off, and come back when another one has it.
    pub fn narrow_disks(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_d15c);
        let narrow = Self::narrow(seed);
        let mut weight = |greatest: u64| if random.once_in(3) { 0 } else { 1 + random.below(greatest) };
        let (client_pause, client_cut, client_death) = (weight(4), weight(4), weight(2));
        let power_cut_all = narrow.faults.power_cut_all * 2;
        Self {
            partitions: pick(random, &[1, 2, 4]),
            clients: pick(random, &[2, 2, 3]),
            visitors: false,
            calls_per_client: pick(random, &[25, 50]),
            faults: FaultSettings { client_pause, client_cut, client_death, power_cut_all, ..narrow.faults },
            ..narrow
        }
    }

    /// The workload of a narrow run about pledges: clients look at the same few names and attributes again and again,
    /// mostly from memory, and change some of them. Faults concern what bounds a pledge: leases, leaders, recalls, and
    /// clients that are away. Power cuts are seldom, since names are not judged after one.
    pub fn narrow_pledges(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_91ed);
        let narrow = Self::narrow(seed);
        let every = pick(random, &[40_000, 100_000, 200_000]);
        let mut weight = |greatest: u64| if random.once_in(2) { 0 } else { 1 + random.below(greatest) };
        let faults = FaultSettings {
            every,
            kill: weight(3) + 1,
            network_cut: weight(2),
            link_reset: weight(1),
            client_death: weight(2),
            connection_cut: weight(3),
            coordinator_cut: weight(2),
            pause: weight(2),
            one_way_cut: weight(1),
            clock_jump: weight(1),
            split: weight(2),
            client_pause: weight(4) + 1,
            client_cut: weight(3),
            listener_cut: weight(4),
            ..FaultSettings::default()
        };
        let is_cut = random.once_in(8);
        let faults = FaultSettings {
            power_cut: u64::from(is_cut),
            power_cut_all: u64::from(is_cut && random.once_in(2)),
            kill_all: u64::from(random.once_in(4)),
            ..faults
        };
        Self {
            partitions: pick(random, &[1, 1, 2, 4]),
            spread_max: pick(random, &[1, 1, 2]),
            clients: pick(random, &[2, 3, 3]),
            visitors: false,
            calls_per_client: pick(random, &[150, 300]),
            names: pick(random, &[2, 3]),
            directories: pick(random, &[1, 2, 3]),
            data_share: pick(random, &[20, 50]),
            durable_share: pick(random, &[0, 50, 100]),
            overwrites: pick(random, &[0, 0, 50, 80]),
            reads: pick(random, &[0, 40]),
            blocks: pick(random, &[6, 12]),
            looks: pick(random, &[50, 70, 85, 95]),
            grows: pick(random, &[0, 0, 0, 40, 60]),
            maps: pick(random, &[false, false, true]),
            restarts_at_once: true,
            faults,
            ..narrow
        }
    }

    /// The workload of a narrow run about bytes.
    pub fn narrow(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0x4a44_0e00);
        let wide = Self::of(seed);
        let servers = pick(random, &[2, 2, 3]);
        let drift = if random.once_in(2) { wide.drift } else { 0 };
        let (names, clients) = (pick(random, &[1, 1, 2]), pick(random, &[1, 2, 2, 3]));
        let visitors = !random.once_in(4);
        let durable_overwrites = durable_overwrites(seed, if visitors { 97 } else { 85 });
        Self {
            machines: servers,
            servers,
            bricks_per_server: 1,
            copies: if random.once_in(4) { 2 } else { servers },
            partitions: pick(random, &[1, 1, 1, 2]),
            spread_max: 1,
            clients,
            visitors,
            durable_overwrites,
            calls_per_client: 80,
            names,
            directories: 1,
            data_share: 80,
            durable_share: 100,
            overwrites: pick(random, &[90, 95, 98]),
            blocks: pick(random, &[1, 2, 5]),
            drift,
            faults: faults(seed % THEMES, random),
            ..wide
        }
    }
}

/// One in two of the theme's kinds of faults, and seldom one of another theme.
fn faults(theme: u64, random: &mut Random) -> FaultSettings {
    let every: Micros = pick(random, &[40_000, 100_000, 200_000, 400_000]);
    let mut weight = |themes: &[u64]| {
        let share = if themes.contains(&theme) { 2 } else { 12 };
        if random.once_in(share) { 1 + random.below(3) } else { 0 }
    };
    let mut faults = FaultSettings {
        every,
        kill: weight(&[0, 1, 2, 3]),
        power_cut: weight(&[1, 3]),
        power_cut_all: weight(&[1]),
        network_cut: weight(&[0, 3]),
        link_reset: weight(&[0, 2]),
        full_disk: weight(&[3]),
        failed_sync: weight(&[1]),
        client_death: weight(&[2]),
        connection_cut: weight(&[0, 2]),
        coordinator_cut: weight(&[0, 3]),
        pause: weight(&[0, 2]),
        one_way_cut: weight(&[0]),
        clock_jump: weight(&[]),
        rot: weight(&[1]),
        older_copy: weight(&[1]),
        wipe: weight(&[3]),
        ..FaultSettings::default()
    };
    // At least one.
    match theme {
        0 => faults.kill += 1,
        1 => faults.power_cut += 1,
        2 => faults.connection_cut += 1,
        _ => faults.coordinator_cut += 1,
    }
    faults
}
