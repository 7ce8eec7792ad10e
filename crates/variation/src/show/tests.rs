//! Pictures and tables: they contain their data, and no name in a file becomes code in a page.

use super::*;
use crate::shapes::SHAPES;

fn samples() -> Vec<Series> {
    let series = |shape: &crate::shapes::Shape| {
        let rates: Vec<f64> = shape.samples().iter().map(|rate| *rate as f64).collect();
        let times = (0..rates.len()).map(|at| at as f64 * 10.0).collect();
        Series::new(shape.name, Unit::Iops, rates, times).unwrap()
    };
    SHAPES.iter().map(series).collect()
}

#[test]
fn pictures_have_units_zero_and_a_legend() {
    let all = samples();
    for (name, picture) in charts(&all) {
        let svg = chart::svg(&picture).unwrap();
        for word in [picture.x.label.as_str(), picture.y.label.as_str(), "steep", "narrow", "cliff"] {
            assert!(svg.contains(word), "{name} lacks {word}");
        }
        assert!(chart::png(&picture).unwrap().starts_with(b"\x89PNG"));
    }
    let picture = or_better(&all);
    assert!(picture.y.from == 0.0 && picture.y.label.contains("IOPS") && picture.x.label.contains('%'));
    assert!(picture.lines.iter().all(|line| line.points.windows(2).all(|pair| pair[1].1 <= pair[0].1)));
}

#[test]
fn a_name_in_a_file_is_no_code_in_a_page() {
    let evil = Series::new("<script>x</script>\"&", Unit::Iops, vec![1.0, 2.0], vec![0.0, 1.0]).unwrap();
    let page = report::page("<b>", "made", &report::sections(&[evil]).unwrap());
    assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
    assert!(page.contains("&lt;script&gt;"));
    assert!(!page.contains("http://") || page.matches("http://").count() == page.matches("http://www.w3.org").count());
}

#[test]
fn odd_series_are_drawn_too() {
    let most = crate::series::NUMBER_MAX;
    let extreme = [vec![1e-300, 2e-300], vec![5e-324; 3], vec![most, 0.0, most], vec![most, most - 0.125]];
    let odd = [vec![5.0], vec![0.0, 0.0], vec![1e-6, 1e12], vec![3.0; 5000]];
    for (rates, step) in odd.into_iter().map(|rates| (rates, 1.0)).chain(extreme.map(|rates| (rates, most / 4.0))) {
        let times = (0..rates.len()).map(|at| at as f64 * step).collect();
        let series = [Series::new("odd", Unit::MbPerS, rates, times).unwrap()];
        for (_, picture) in charts(&series) {
            chart::svg(&picture).unwrap();
            assert!(terminal::chart(&picture, 60, 12).iter().all(|line| line.chars().count() <= 60));
        }
        let summary = summary(&series[0]);
        assert!(summary.flatness <= 1.0 && summary.autocorrelation_1.abs() <= 1.0, "{summary:?}");
    }
}

#[test]
fn a_terminal_shows_the_fall() {
    let picture = terminal::chart(&or_better(&samples()[..1]), 70, 12).join("\n");
    assert!(
        picture.contains("15,000 |") && picture.contains("share of the samples") && picture.contains("A steep"),
        "{picture}"
    );
}

#[test]
fn long_series_keep_their_dips() {
    let mut points: Vec<(f64, f64)> = (0..100_000).map(|at| (f64::from(at), 100.0)).collect();
    points[54_321].1 = 1.0;
    let shown = envelope(points);
    assert!(shown.len() <= POINTS_MAX + 2 && shown.contains(&(54_321.0, 1.0)));
}
