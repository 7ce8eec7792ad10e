//! Placement of partitions on bricks: by weight, evenly, and reproducibly.
//!
//! Each partition goes to the bricks that have the least load for their weight so far. Ties are broken by XXH3-64 of
//! partition and brick (rendezvous hashing, Thaler and Ravishankar 1998), so that bricks do not all fill in the same
//! order.

use hekate_proto::{BrickId, Error, PartitionNumber, Result};
use xxhash_rust::xxh3::xxh3_64;

/// A brick that partitions can be placed on. A partition has at most one copy in a failure domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub brick: BrickId,
    /// Its share, relative to the other bricks: normally its size in bytes.
    pub weight: u64,
    /// The failure domain: a disk or a server.
    pub domain: String,
    /// If this is set for any brick, each partition is led by one of the bricks with it.
    pub leads: bool,
}

/// The bricks for `copies` copies of each partition, the leader first.
///
/// # Errors
/// `Invalid` if `copies` is 0 or higher than the number of failure domains.
pub fn place(candidates: &[Candidate], copies: u32, partitions: u32) -> Result<Vec<Vec<BrickId>>> {
    let mut domains: Vec<&str> = candidates.iter().map(|candidate| candidate.domain.as_str()).collect();
    domains.sort_unstable();
    domains.dedup();
    if copies == 0 {
        return Err(Error::invalid("a volume with 0 copies stores nothing; it needs at least 1"));
    }
    if (domains.len() as u32) < copies {
        return Err(Error::invalid(format!(
            "{copies} copies need at least {} bricks of different failure domains; the pool has {}: add bricks",
            copies,
            domains.len()
        )));
    }
    let led_by_some = candidates.iter().any(|candidate| candidate.leads);
    let mut held = vec![0u64; candidates.len()];
    let mut led = vec![0u64; candidates.len()];
    let mut placed = Vec::with_capacity(partitions as usize);
    for partition in 0..partitions {
        let mut members: Vec<usize> = Vec::new();
        for _ in 0..copies {
            let free = |index: &usize| {
                let may_lead = !members.is_empty() || !led_by_some || candidates[*index].leads;
                may_lead && !members.iter().any(|member| candidates[*member].domain == candidates[*index].domain)
            };
            let next = (0..candidates.len())
                .filter(free)
                .min_by_key(|index| burden(held[*index], &candidates[*index], PartitionNumber(partition)));
            members.extend(next);
        }
        members.iter().for_each(|member| held[*member] += 1);
        let rank = |member: &usize| burden(led[*member], &candidates[*member], PartitionNumber(partition));
        members.sort_by_key(|member| (led_by_some && !candidates[*member].leads, rank(member)));
        led[members[0]] += 1;
        placed.push(members.into_iter().map(|member| candidates[member].brick).collect());
    }
    Ok(placed)
}

/// The brick's load in relation to its weight after one more partition, then the hash.
fn burden(load: u64, candidate: &Candidate, partition: PartitionNumber) -> (u128, u64) {
    let mut bytes = candidate.brick.0.to_le_bytes().to_vec();
    bytes.extend_from_slice(&partition.0.to_le_bytes());
    ((u128::from(load + 1) << 64) / u128::from(candidate.weight.max(1)), xxh3_64(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates(weights: &[u64]) -> Vec<Candidate> {
        let one = |(index, weight): (usize, &u64)| Candidate {
            brick: BrickId(index as u128 * 77 + 5),
            weight: *weight,
            domain: format!("disk {index}"),
            leads: false,
        };
        weights.iter().enumerate().map(one).collect()
    }

    fn shares(placed: &[Vec<BrickId>], candidates: &[Candidate]) -> Vec<usize> {
        let count = |brick| placed.iter().flatten().filter(|member| **member == brick).count();
        candidates.iter().map(|candidate| count(candidate.brick)).collect()
    }

    #[test]
    fn equal_bricks_get_equal_shares_and_equal_leads() {
        let three = candidates(&[1, 1, 1]);
        let placed = place(&three, 2, 48).unwrap();
        assert_eq!(shares(&placed, &three), [32, 32, 32]);
        let leads: Vec<Vec<BrickId>> = placed.iter().map(|members| vec![members[0]]).collect();
        assert_eq!(shares(&leads, &three), [16, 16, 16]);
    }

    #[test]
    fn a_brick_of_twice_the_size_gets_twice_the_share() {
        let mixed = candidates(&[1000, 1000, 2000]);
        let placed = place(&mixed, 1, 64).unwrap();
        assert_eq!(shares(&placed, &mixed), [16, 16, 32]);
    }

    #[test]
    fn a_brick_that_leads_has_a_copy_of_everything() {
        let mut four = candidates(&[1, 1, 1, 1]);
        (four[2].leads, four[3].leads) = (true, true);
        let placed = place(&four, 2, 32).unwrap();
        assert!(placed.iter().all(|members| four[2..].iter().any(|brick| brick.brick == members[0])));
        let leads = |brick| placed.iter().filter(|members| members[0] == brick).count();
        assert!(leads(four[2].brick).abs_diff(leads(four[3].brick)) <= 2, "about as many each");
    }

    #[test]
    fn too_few_domains_are_refused_in_words() {
        let error = place(&candidates(&[1]), 2, 16).unwrap_err();
        assert!(error.to_string().contains("2 copies need at least 2 bricks"), "{error}");
        assert!(place(&candidates(&[1]), 0, 16).is_err());
    }

    proptest! {
        #[test]
        fn copies_are_on_different_domains_and_it_is_repeatable(
            weights in prop::collection::vec(0u64..1 << 50, 1..9), copies in 1u32..4, bits in 0u32..7)
        {
            let bricks = candidates(&weights);
            if let Ok(placed) = place(&bricks, copies, 1 << bits) {
                prop_assert_eq!(placed.len(), 1 << bits);
                for members in &placed {
                    let mut distinct = members.clone();
                    distinct.sort();
                    distinct.dedup();
                    prop_assert_eq!(distinct.len() as u32, copies);
                }
                prop_assert_eq!(place(&bricks, copies, 1 << bits).unwrap(), placed);
            } else {
                prop_assert!(copies as usize > bricks.len());
            }
        }
    }
}
