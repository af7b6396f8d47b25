//! Rebuilding from sources that are compared with each other: none is believed alone.
//!
//! `k` splits always form a code word, so a wrong one among them would make the new split wrong in
//! a way that agrees with it. Of `k + 2d` sources up to `d` may be wrong, at each place others.
//!
//! Pure. Paper: \[hydra22\] 4.2, with a rule that it does not have.

use cenote_codec::Code;
use cenote_pool::control::FillResult;

/// Bytes that are judged together; the shortest split of a page, so never two pages at once.
const GRANULE_BYTES: usize = 128;

/// Makes split `target` from `sources`, more than `k` of one length.
///
/// # Errors
/// `Disagree`: more of them are wrong than can be told.
pub(super) fn rebuild(
    code: &Code,
    target: usize,
    sources: &[(usize, &[u8])],
    out: &mut [u8],
) -> Result<(), FillResult> {
    if code.k() == 1 {
        return copy(sources, out);
    }
    let bad = |error| {
        tracing::error!(%error, "compare the sources of a fill that was found sound");
        FillResult::Bad
    };
    if code.consistent(sources).map_err(bad)? {
        return code.rebuild(target, &sources[..code.k()], out).map_err(bad);
    }
    for (index, out) in out.chunks_mut(GRANULE_BYTES).enumerate() {
        let granule = granules(sources, index, out.len());
        let right = right_of(code, &granule).ok_or(FillResult::Disagree)?;
        code.rebuild(target, &right[..code.k()], out).map_err(bad)?;
    }
    Ok(())
}

/// The sources that all the others agree with.
fn right_of<'a>(code: &Code, sources: &[(usize, &'a [u8])]) -> Option<Vec<(usize, &'a [u8])>> {
    let tolerated = (sources.len() - code.k()) / 2;
    let wrong = if tolerated == 0 {
        code.consistent(sources).ok()?.then_some(0)?
    } else {
        code.locate_set(sources, tolerated).ok()?
    };
    let is_right = |(split, _): &&(usize, &[u8])| wrong >> split & 1 == 0;
    Some(sources.iter().filter(is_right).copied().collect())
}

/// What most copies say, if enough do.
fn copy(sources: &[(usize, &[u8])], out: &mut [u8]) -> Result<(), FillResult> {
    let tolerated = (sources.len() - 1) / 2;
    for (index, out) in out.chunks_mut(GRANULE_BYTES).enumerate() {
        let copies = granules(sources, index, out.len());
        let says = |(_, candidate): &&(usize, &[u8])| {
            let others = copies.iter().filter(|(_, copy)| copy != candidate);
            others.count() <= tolerated
        };
        let (_, right) = copies.iter().find(says).ok_or(FillResult::Disagree)?;
        out.copy_from_slice(right);
    }
    Ok(())
}

/// One place of every source.
fn granules<'a>(sources: &[(usize, &'a [u8])], index: usize, len: usize) -> Vec<(usize, &'a [u8])> {
    let start = index * GRANULE_BYTES;
    let sources = sources.iter();
    sources
        .map(|&(split, bytes)| (split, &bytes[start..][..len]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1024;

    fn code_word(code: &Code) -> Vec<Vec<u8>> {
        let data: Vec<u8> = (0..code.k() * LEN).map(|at| (at * 7 % 251) as u8).collect();
        let mut parity = vec![0; code.r() * LEN];
        code.encode(&data, &mut parity);
        let all = data.chunks(LEN).chain(parity.chunks(LEN));
        all.map(<[u8]>::to_vec).collect()
    }

    fn rebuilt(code: &Code, splits: &[Vec<u8>], from: &[usize]) -> Result<Vec<u8>, FillResult> {
        let sources: Vec<(usize, &[u8])> = from
            .iter()
            .map(|&split| (split, &splits[split][..]))
            .collect();
        let mut out = vec![0; LEN];
        rebuild(code, 0, &sources, &mut out).map(|()| out)
    }

    #[test]
    fn a_wrong_source_at_each_place_another_is_left_aside() {
        let code = Code::new(4, 3).unwrap();
        let right = code_word(&code);
        let mut wrong = right.clone();
        wrong[1][3] ^= 1;
        wrong[5][LEN - 1] ^= 1;
        let six = [1, 2, 3, 4, 5, 6];
        assert_eq!(rebuilt(&code, &wrong, &six), Ok(right[0].clone()));
        let five = [1, 2, 3, 4, 5];
        assert_eq!(rebuilt(&code, &wrong, &five), Err(FillResult::Disagree));
        assert_eq!(rebuilt(&code, &right, &five), Ok(right[0].clone()));
        wrong[2][3] ^= 1;
        assert_eq!(rebuilt(&code, &wrong, &six), Err(FillResult::Disagree));
    }

    #[test]
    fn most_copies_decide() {
        let code = Code::new(1, 3).unwrap();
        let right = vec![vec![9; LEN]; 4];
        let mut wrong = right.clone();
        wrong[3][700] = 1;
        assert_eq!(rebuilt(&code, &wrong, &[1, 2, 3]), Ok(right[0].clone()));
        assert_eq!(rebuilt(&code, &wrong, &[2, 3]), Err(FillResult::Disagree));
    }
}
