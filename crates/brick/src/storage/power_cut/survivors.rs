//! Which of the changes that no sync has covered a power cut leaves on the medium.

/// A choice among unsynced changes; each is named by the number of the call that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// What was synced, and no more.
    Nothing,
    /// As if the power went right after all of it was written.
    Everything,
    /// Of the unsynced changes this one alone.
    Only(u64),
    /// Of the unsynced changes all but this one.
    AllBut(u64),
    /// Any subset, torn by sectors, that this seed chooses.
    Seeded(u64),
}

/// A small generator (splitmix64): one seed, one sequence, on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.number() % end }
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The choice, as one cut makes it: asked for each file's changes in order.
pub struct Choice {
    survivors: Survivors,
    random: Random,
}

/// What survives of one file's changes, or of the names.
enum Plan {
    All,
    None,
    Only(u64),
    AllBut(u64),
    /// Each whole change or not.
    Changes,
    /// Each sector of each change or not.
    Sectors,
    /// Those before this one whole, of this one some sectors, none behind it.
    TornAt(u64),
}

/// One file's part of a [`Choice`].
pub struct FileChoice<'a> {
    plan: Plan,
    random: &'a mut Random,
}

/// What survives of one change.
pub enum Kept {
    All,
    None,
    Torn,
}

impl Choice {
    pub fn new(survivors: Survivors) -> Self {
        let seed = if let Survivors::Seeded(seed) = survivors { seed } else { 0 };
        Self { survivors, random: Random::new(seed) }
    }

    /// For a file (or a directory) with these changes.
    pub fn of(&mut self, calls: &mut dyn ExactSizeIterator<Item = u64>) -> FileChoice<'_> {
        let plan = match self.survivors {
            Survivors::Nothing => Plan::None,
            Survivors::Everything => Plan::All,
            Survivors::Only(call) => Plan::Only(call),
            Survivors::AllBut(call) => Plan::AllBut(call),
            Survivors::Seeded(_) => self.any(calls),
        };
        FileChoice { plan, random: &mut self.random }
    }

    fn any(&mut self, calls: &mut dyn ExactSizeIterator<Item = u64>) -> Plan {
        // Often whole files: the journal without the data files, and the other way round, are where bugs hide.
        match self.random.below(8) {
            0 | 1 => Plan::None,
            2 | 3 => Plan::All,
            4 => Plan::Changes,
            5 => Plan::Sectors,
            6 => Plan::AllBut(self.one(calls)),
            _ => Plan::TornAt(self.one(calls)),
        }
    }

    fn one(&mut self, calls: &mut dyn ExactSizeIterator<Item = u64>) -> u64 {
        let at = self.random.below(calls.len() as u64);
        calls.nth(at as usize).unwrap_or_default()
    }
}

impl FileChoice<'_> {
    /// What survives of this change.
    pub fn keeps(&mut self, call: u64) -> Kept {
        let whole = match self.plan {
            Plan::All => true,
            Plan::None => false,
            Plan::Only(only) => call == only,
            Plan::AllBut(lost) => call != lost,
            Plan::Changes => self.random.once_in(2),
            Plan::Sectors => return Kept::Torn,
            Plan::TornAt(torn) if call == torn => return Kept::Torn,
            Plan::TornAt(torn) => call < torn,
        };
        if whole { Kept::All } else { Kept::None }
    }

    /// Of a change that is torn: one of its sectors, or the length that it gave the file.
    pub fn keeps_part(&mut self) -> bool {
        self.random.once_in(2)
    }
}
