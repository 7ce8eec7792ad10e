//! Which unsynced changes a power cut leaves on the medium.

/// A choice among the unsynced changes; each is named by the number of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    Nothing,
    /// All, as if the power failed right after they were written.
    Everything,
    /// This one only.
    Only(u64),
    /// All but this one.
    AllBut(u64),
    /// A random subset from this seed, torn at sectors.
    Seeded(u64),
}

/// A small generator of random numbers (splitmix64), the same on every machine for a seed.
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

/// The choice of one power cut, asked for the changes of each file in order.
pub struct Choice {
    survivors: Survivors,
    random: Random,
}

/// What survives of the changes of one file, or of the names.
enum Plan {
    All,
    None,
    Only(u64),
    AllBut(u64),
    /// Each whole change or not.
    Changes,
    /// Each sector of each change or not.
    Sectors,
    /// All changes in front of this one, some sectors of it, and none behind it.
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

    /// The choice for a file or directory with these changes.
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
        // Often whole files: many bugs show only if the journal survives without the data files, or the other way
        // round.
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

    /// Whether a part of a torn change survives: one of its sectors, or the length that it set.
    pub fn keeps_part(&mut self) -> bool {
        self.random.once_in(2)
    }
}
