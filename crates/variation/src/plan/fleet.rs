//! The question: the machines, the rate that they must give together, and the conditions.

use super::distribution::Distribution;
use crate::error::{Error, Result};
use crate::series::Series;

/// A kind of machine.
#[derive(Debug, Clone)]
pub struct Kind {
    pub name: String,
    /// In the order of time, as measured.
    pub rates: Vec<f64>,
    pub distribution: Distribution,
}

/// Conditions of all machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// The share of the time in which all machines are at the same place of their distribution; in the rest of it each
    /// is independent. It is also the correlation between any two machines.
    pub together: f64,
    /// The share of the machines that is always down, rounded up.
    pub down: f64,
    /// The probability of each machine to be down, independently.
    pub outage: f64,
    /// Operations on machines for each operation of users: copies times write amplification.
    pub amplification: f64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self { together: 0.0, down: 0.0, outage: 0.0, amplification: 1.0 }
    }
}

impl Conditions {
    /// Refuses impossible conditions.
    ///
    /// # Errors
    ///
    /// The text names the condition or the part of the question, and the fix.
    pub fn check(&self) -> Result<()> {
        let share = |name: &str, value: f64, end: &str, is_sound: bool| match is_sound {
            true => Ok(()),
            false => Err(Error::wrong_use(format!("--{name} is {value}; it is a share from 0 {end}"))),
        };
        share("together", self.together, "to 1", (0.0..=1.0).contains(&self.together))?;
        share("down", self.down, "up to, but without, 1", (0.0..1.0).contains(&self.down))?;
        share("outage", self.outage, "up to, but without, 1", (0.0..1.0).contains(&self.outage))?;
        if !self.amplification.is_finite() || self.amplification <= 0.0 {
            return Err(Error::wrong_use("copies and amplification are numbers above 0"));
        }
        Ok(())
    }

    /// Machines that are up, of `count`.
    pub fn up(&self, count: usize) -> usize {
        // A share that was written in decimal may miss a whole number slightly.
        count - ((count as f64 * self.down - 1e-9).ceil().max(0.0) as usize).min(count)
    }

    /// Machines that are needed so that `up` are up.
    pub fn count_for(&self, up: usize) -> usize {
        let mut count = ((up as f64 / (1.0 - self.down)) as usize).saturating_sub(2).max(up);
        while self.up(count) < up {
            count += 1;
        }
        count
    }
}

impl Kind {
    /// A kind with these rates.
    ///
    /// # Errors
    ///
    /// The conditions are impossible, or the series has one sample only.
    pub fn new(series: &Series, conditions: &Conditions) -> Result<Self> {
        let (name, rates) = (series.name.clone(), series.rates.clone());
        if rates.len() < 2 {
            let text = "it has one sample, which does not show how the rate varies; measure for longer";
            return Err(Error::bad_data(&name, text));
        }
        let distribution = Distribution::new(rates.clone(), conditions.outage);
        Ok(Self { name, rates, distribution })
    }
}

/// Machines of several kinds.
pub type Fleet<'a> = Vec<(&'a Kind, usize)>;

/// The number of machines of `kind` that is needed beside the existing ones.
#[derive(Debug, Clone)]
pub struct Question<'a> {
    pub kind: &'a Kind,
    /// Existing machines.
    pub have: Fleet<'a>,
    /// The rate of all users together.
    pub target: f64,
    /// The share of the time in which the target must be reached.
    pub confidence: f64,
    pub conditions: Conditions,
}

impl<'a> Question<'a> {
    /// Refuses a question without an answer.
    ///
    /// # Errors
    ///
    /// The text names the condition or the part of the question, and the fix.
    pub fn check(&self) -> Result<()> {
        if !self.target.is_finite() || self.target <= 0.0 {
            return Err(Error::wrong_use(format!("the target is {}; it is a rate above 0", self.target)));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            let text = "a confidence lies between 0 and 100 %, without both: samples promise nothing for certain";
            return Err(Error::wrong_use(text));
        }
        self.conditions.check()?;
        if self.kind.distribution.most() == 0.0 {
            let text =
                format!("{} has a rate of 0 always: no number of such machines reaches a target", self.kind.name);
            return Err(Error::bad_data(&self.kind.name, text));
        }
        Ok(())
    }

    /// The rate that the machines must give for that.
    pub fn demand(&self) -> f64 {
        self.target * self.conditions.amplification
    }

    /// The machines that are up if there are `count` of the kind.
    pub fn up(&self, count: usize) -> Fleet<'a> {
        let have = self.have.iter().map(|(kind, count)| (*kind, self.conditions.up(*count)));
        std::iter::once((self.kind, self.conditions.up(count))).chain(have).collect()
    }

    /// All kinds in the question.
    pub fn distributions(&self) -> Vec<&'a Distribution> {
        std::iter::once(&self.kind.distribution).chain(self.have.iter().map(|(kind, _)| &kind.distribution)).collect()
    }

    /// The missing rate if each existing machine gives the rate of `each`.
    fn missing(&self, each: impl Fn(&Distribution) -> f64) -> f64 {
        let have = self.have.iter().map(|(kind, count)| self.conditions.up(*count) as f64 * each(&kind.distribution));
        self.demand() - have.sum::<f64>()
    }

    /// Machines if each always gives the rate of `each`; none if that is 0.
    fn count_at(&self, each: impl Fn(&Distribution) -> f64) -> Option<usize> {
        let (missing, one) = (self.missing(&each), each(&self.kind.distribution));
        if missing <= 0.0 {
            return Some(0);
        }
        let up = (missing / one - 1e-9).ceil();
        (one > 0.0 && up <= super::COUNT_MAX as f64).then(|| self.conditions.count_for(up as usize))
    }

    /// Machines if each always gave its best sample.
    pub fn best_case(&self) -> Option<usize> {
        self.count_at(Distribution::most)
    }

    /// Machines if each always gave its worst sample.
    pub fn worst_case(&self) -> Option<usize> {
        self.count_at(Distribution::least)
    }

    /// Machines if all were always at the same place of their distribution.
    pub fn all_together(&self) -> Option<usize> {
        self.count_at(|distribution| distribution.at((1.0 - self.confidence).max(0.0)))
    }
}

/// The probability that machines that are all at the same place give `demand` together.
pub fn together(fleet: &[(&Kind, usize)], demand: f64) -> f64 {
    let at = |place: f64| fleet.iter().map(|(kind, count)| *count as f64 * kind.distribution.at(place)).sum::<f64>();
    let enough = |place: f64| at(place) >= demand * (1.0 - 1e-12);
    let (mut low, mut high) = (0.0, 1.0);
    if enough(0.0) {
        return 1.0;
    }
    // Places are multiples of 1 over the number of samples, so this many halvings distinguish them.
    for _ in 0..52 {
        let middle = (low + high) / 2.0;
        if enough(middle) { high = middle } else { low = middle }
    }
    1.0 - high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_down_rounded_up() {
        let conditions = Conditions { down: 0.1, ..Conditions::default() };
        assert_eq!([0, 1, 9, 10, 11, 20].map(|count| conditions.up(count)), [0, 0, 8, 9, 9, 18]);
        for up in 0..200 {
            let count = conditions.count_for(up);
            assert!(conditions.up(count) >= up && (count == 0 || conditions.up(count - 1) < up), "{up}");
        }
    }
}
