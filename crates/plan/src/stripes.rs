//! A cluster full of stripes, as a placer leaves it.
//!
//! Hosts are alike and have room for several times their mean load: none is ever full, and what
//! differs is the policy alone. Every stripe is placed on what hosts have free right then.

use cenote_measure::random::Random;
use cenote_pool::placement::{Candidate, CodingSets, Pick, Policy, Shape, Site};

/// What places the stripes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Placer {
    /// EC-Cache: k+r random hosts.
    Random,
    /// Each member on the less loaded of two random hosts.
    TwoChoices,
    /// `CodingSets` of k+r+l hosts.
    CodingSets {
        /// l.
        spare: usize,
        /// How a stripe gets its group.
        pick: Pick,
    },
}

/// What is to be placed.
#[derive(Clone, Debug)]
pub struct Cluster<'a> {
    /// The failure domain of each host, as the placer knows it.
    pub domains: &'a [u32],
    /// k+r.
    pub members: usize,
    /// Slabs on a host in the mean.
    pub slabs_per_host: u32,
}

/// Stripes and the hosts of each.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stripes {
    members: usize,
    hosts: Vec<u32>,
}

/// Room of a host, in mean loads, and slabs beside. Random placement fills no host of a million
/// further where the mean is 8 or more; smaller means need, and get, more.
const ROOM: u32 = 4;
const ROOM_BESIDE: u32 = 32;

/// Domains of hosts that share nothing.
#[must_use]
pub fn apart(hosts: usize) -> Vec<u32> {
    (0..u32::try_from(hosts).expect("HOSTS_MAX fits 32 bits")).collect()
}

impl Stripes {
    /// Places as many stripes as have `slabs_per_host` slabs on each host in the mean; fewer where
    /// the placer finds no k+r hosts that may hold one.
    #[must_use]
    pub fn place(placer: Placer, cluster: &Cluster<'_>, random: &mut Random) -> Self {
        let slabs = cluster.domains.len() * cluster.slabs_per_host as usize;
        let members = cluster.members;
        let mut stripes = Self {
            members,
            hosts: Vec::with_capacity(slabs),
        };
        let room = cluster.slabs_per_host * ROOM + ROOM_BESIDE;
        let mut candidates: Vec<Candidate> = (cluster.domains.iter().enumerate())
            .map(|(host, &domain)| Candidate {
                host,
                domain,
                slabs_free: room,
                slabs_total: room,
            })
            .collect();
        let sets = match placer {
            Placer::CodingSets { spare, .. } => groups(cluster, spare),
            Placer::Random | Placer::TwoChoices => CodingSets::new(&[], shape(members, 0)),
        };
        for _ in 0..slabs / members {
            let seed = random.next();
            let over_all =
                |policy: Policy| policy.place(&candidates, |_| false, &[], members, seed);
            let chosen = match placer {
                Placer::Random => over_all(Policy::Random),
                Placer::TwoChoices => over_all(Policy::TwoChoices),
                Placer::CodingSets { pick, .. } => sets
                    .place(|host| candidates.get(host), pick, seed)
                    .unwrap_or_default(),
            };
            if chosen.len() < members {
                break;
            }
            for host in chosen {
                candidates[host].slabs_free -= 1;
                stripes.hosts.push(u32::try_from(host).expect("HOSTS_MAX"));
            }
        }
        stripes
    }

    /// The hosts of each stripe.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.hosts.chunks_exact(self.members)
    }

    /// The hosts of one stripe.
    #[must_use]
    pub fn of(&self, stripe: usize) -> &[u32] {
        &self.hosts[stripe * self.members..][..self.members]
    }

    /// Slabs on each host that is of use to the placer: one that is left over has none.
    #[must_use]
    pub fn loads(&self, hosts: usize) -> Vec<u32> {
        let mut loads = vec![0; hosts];
        for &host in &self.hosts {
            loads[host as usize] += 1;
        }
        loads
    }
}

/// The groups of a cluster.
#[must_use]
pub fn groups(cluster: &Cluster<'_>, spare: usize) -> CodingSets {
    let site = |&domain: &u32| Site {
        domain,
        power: None,
        retired: false,
    };
    let sites: Vec<Site> = cluster.domains.iter().map(site).collect();
    CodingSets::new(&sites, shape(cluster.members, spare))
}

fn shape(members: usize, spare: usize) -> Shape {
    Shape {
        members,
        spare,
        power_max: members,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placer_fills_the_cluster_with_whole_stripes() {
        let domains = apart(60);
        let cluster = Cluster {
            domains: &domains,
            members: 4,
            slabs_per_host: 8,
        };
        let sets = Placer::CodingSets {
            spare: 2,
            pick: Pick::TwoChoices,
        };
        for placer in [Placer::Random, Placer::TwoChoices, sets] {
            let stripes = Stripes::place(placer, &cluster, &mut Random::new(3));
            assert_eq!(stripes.iter().len(), 120, "{placer:?}");
            assert_eq!(stripes.loads(60).iter().sum::<u32>(), 480);
            for (index, stripe) in stripes.iter().enumerate() {
                let mut hosts = stripe.to_vec();
                hosts.sort_unstable();
                hosts.dedup();
                assert_eq!(hosts.len(), 4);
                assert_eq!(stripes.of(index), stripe);
            }
            let again = Stripes::place(placer, &cluster, &mut Random::new(3));
            assert_eq!(again, stripes);
        }
        let inside = Stripes::place(sets, &cluster, &mut Random::new(3));
        let in_one = |stripe: &[u32]| stripe.iter().all(|host| host / 6 == stripe[0] / 6);
        assert!(inside.iter().all(in_one));
    }

    #[test]
    fn too_few_domains_hold_no_stripe() {
        let domains = [0, 0, 1, 1, 2, 2];
        let cluster = Cluster {
            domains: &domains,
            members: 4,
            slabs_per_host: 8,
        };
        for placer in [
            Placer::Random,
            Placer::CodingSets {
                spare: 0,
                pick: Pick::Random,
            },
        ] {
            let stripes = Stripes::place(placer, &cluster, &mut Random::new(3));
            assert_eq!(stripes.iter().len(), 0);
        }
    }
}
