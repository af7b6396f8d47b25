//! The map of a volume's extents: a letter for each, for a page that draws them, and the worst of them
//! in full.
//!
//! A volume may have many more extents than a screen has room for: from [`CELLS_MAX`] on a cell stands
//! for several, and shows the worst of them.

use serde::{Deserialize, Serialize};

/// Most cells of a map.
pub const CELLS_MAX: usize = 2048;
/// Most extents that are told in full.
const TOLD_MAX: usize = 64;

/// How an extent stands, the best first; `cenote_volume::Health` as its owner writes it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    Healthy,
    Regenerating,
    Degraded,
    Lost,
}

impl Health {
    const ALL: [Self; 4] = [
        Self::Healthy,
        Self::Regenerating,
        Self::Degraded,
        Self::Lost,
    ];

    fn letter(self) -> char {
        match self {
            Self::Healthy => 'h',
            Self::Regenerating => 'r',
            Self::Degraded => 'd',
            Self::Lost => 'l',
        }
    }
}

/// An extent, as the owner of its volume tells of it.
#[derive(Clone, Debug, Deserialize)]
pub struct Extent {
    pub index: u64,
    pub health: Health,
    /// Host of each split; none where the slab is missing.
    #[serde(default)]
    pub hosts: Vec<Option<String>>,
    /// Share rebuilt of the slab under regeneration.
    #[serde(default)]
    pub regenerated: Option<f64>,
}

impl Extent {
    fn missing(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_none()).count()
    }

    /// Slabs that are missing or being rebuilt, what is rebuilt taken off.
    fn slabs_left(&self) -> f64 {
        let missing = self.missing() as f64;
        match self.regenerated {
            Some(share) => (missing.max(1.0) - share.clamp(0.0, 1.0)).max(0.0),
            None => missing,
        }
    }
}

/// What is drawn.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Map {
    /// Mapped extents.
    pub count: usize,
    /// Of each health, the best first.
    pub by_health: [usize; 4],
    /// Extents of a cell, but for the last.
    pub per_cell: usize,
    /// A letter for each cell: h, r, d or l.
    pub cells: String,
    /// Extents that are not whole, the worst first, as many as there is room for.
    pub told: Vec<Told>,
}

/// An extent that is not whole.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Told {
    pub index: u64,
    pub health: Health,
    /// Slabs that it lacks.
    pub missing: usize,
    /// Of so many.
    pub splits: usize,
    /// Share rebuilt of the one under way.
    pub regenerated: Option<f64>,
}

impl Map {
    /// Of the mapped extents of a volume, by address.
    pub fn of(extents: &[Extent]) -> Self {
        let mut by_health = [0; 4];
        for extent in extents {
            by_health[extent.health as usize] += 1;
        }
        let per_cell = extents.len().div_ceil(CELLS_MAX).max(1);
        let worst = |some: &[Extent]| some.iter().map(|extent| extent.health).max();
        let cells = extents.chunks(per_cell).filter_map(worst);
        let mut broken: Vec<&Extent> = extents
            .iter()
            .filter(|extent| extent.health != Health::Healthy)
            .collect();
        broken.sort_by_key(|extent| (std::cmp::Reverse(extent.health), extent.index));
        let told = broken.into_iter().take(TOLD_MAX).map(|extent| Told {
            index: extent.index,
            health: extent.health,
            missing: extent.missing(),
            splits: extent.hosts.len(),
            regenerated: extent.regenerated,
        });
        Self {
            count: extents.len(),
            by_health,
            per_cell,
            cells: cells.map(Health::letter).collect(),
            told: told.collect(),
        }
    }

    /// The worst of them; of none that is healthy.
    pub fn health(&self) -> Health {
        let mut worst_first = Health::ALL.into_iter().rev();
        let found = worst_first.find(|health| self.by_health[*health as usize] > 0);
        found.unwrap_or(Health::Healthy)
    }
}

/// Bytes of slabs that are missing, or on their way.
pub fn bytes_to_rebuild(extents: &[Extent], slab_bytes: u64) -> f64 {
    let broken = extents.iter().filter(|extent| {
        // What a lost extent held is not rebuilt: its hosts come back or it is mapped again.
        matches!(extent.health, Health::Regenerating | Health::Degraded)
    });
    broken.map(Extent::slabs_left).sum::<f64>() * slab_bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(index: u64, health: Health) -> Extent {
        let host = || Some("h00".to_owned());
        let hosts = match health {
            Health::Healthy => vec![host(), host(), host()],
            Health::Regenerating | Health::Degraded => vec![host(), None, host()],
            Health::Lost => vec![None, None, host()],
        };
        Extent {
            index,
            health,
            hosts,
            regenerated: (health == Health::Regenerating).then_some(0.25),
        }
    }

    #[test]
    fn each_extent_has_its_cell_and_the_worst_are_told_first() {
        let extents = [
            extent(0, Health::Healthy),
            extent(1, Health::Degraded),
            extent(4, Health::Regenerating),
            extent(9, Health::Lost),
        ];
        let map = Map::of(&extents);
        assert_eq!(map.cells, "hdrl");
        assert_eq!((map.by_health, map.per_cell), ([1, 1, 1, 1], 1));
        let told: Vec<u64> = map.told.iter().map(|told| told.index).collect();
        assert_eq!(told, [9, 1, 4]);
        assert_eq!((map.told[0].missing, map.told[0].splits), (2, 3));
        assert_eq!(map.health(), Health::Lost);
        assert_eq!(Map::of(&[]).health(), Health::Healthy);
    }

    #[test]
    fn one_that_is_lost_shows_among_a_million() {
        let mut extents: Vec<Extent> = (0..1_000_000)
            .map(|index| Extent {
                hosts: Vec::new(),
                ..extent(index, Health::Healthy)
            })
            .collect();
        extents[777_777].health = Health::Lost;
        let map = Map::of(&extents);
        assert!(map.cells.len() <= CELLS_MAX, "{}", map.cells.len());
        assert_eq!(map.per_cell, 489, "a million over 2048, rounded up");
        assert_eq!(map.cells.find('l'), Some(777_777 / 489));
        assert_eq!(map.cells.matches('l').count(), 1);
        for extent in &mut extents {
            extent.health = Health::Degraded;
        }
        assert_eq!(Map::of(&extents).told.len(), TOLD_MAX);
    }

    #[test]
    fn what_is_to_be_rebuilt_is_what_is_missing_and_not_done() {
        let extents = [
            extent(0, Health::Healthy),
            extent(1, Health::Degraded),
            extent(2, Health::Regenerating),
            extent(3, Health::Lost),
        ];
        assert_eq!(bytes_to_rebuild(&extents, 1000), 1000.0 + 750.0);
        // A slab on its way has a host already.
        let mut moving = extent(2, Health::Regenerating);
        moving.hosts[1] = Some("h03".to_owned());
        assert_eq!(bytes_to_rebuild(&[moving], 1000), 750.0);
    }
}
