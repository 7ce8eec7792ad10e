//! `hekate variation plan`.

use super::{made, read_all};
use crate::cli::{Cli, VariationPlan};
use crate::failure::Failure;
use crate::output;
use hekate_variation::plan::outcome::{self, Beside, Outcome};
use hekate_variation::plan::{Conditions, Fleet, Kind, Question, mix};
use hekate_variation::series::Series;
use hekate_variation::show::{chart, export, report};
use serde_json::{Value, json};

pub fn plan(cli: &Cli, options: &VariationPlan) -> Result<(), Failure> {
    let conditions = Conditions {
        together: options.together,
        down: options.down,
        outage: options.outage,
        amplification: f64::from(options.copies) * options.amplification,
    };
    conditions.check()?;
    let prices = prices(options)?;
    let have_files: Vec<_> = options.have.iter().map(|(file, _)| file.clone()).collect();
    let all_files: Vec<_> = options.files.iter().chain(&have_files).cloned().collect();
    let all = read_all(&all_files, options.unit)?;
    let kinds = all.iter().map(|series| Kind::new(series, &conditions)).collect::<Result<Vec<_>, _>>()?;
    let (asked, there) = kinds.split_at(options.files.len());
    let have: Fleet = there.iter().zip(&options.have).map(|(kind, (_, count))| (kind, *count)).collect();
    let question = |kind, target, confidence| Question { kind, have: have.clone(), target, confidence, conditions };
    let beside = Beside { replicates: options.bootstrap as usize, seed: options.seed };
    let (mut outcomes, mut mixes) = (Vec::new(), Vec::new());
    for target in &options.target {
        for confidence in &options.confidence {
            for (kind, price) in asked.iter().zip(&prices) {
                outcomes.push(outcome::outcome(&question(kind, *target, *confidence), *price, beside)?);
            }
            if options.mix {
                mixes.push(cheapest(options, &question(&asked[0], *target, *confidence), asked, &prices, &outcomes)?);
            }
        }
    }
    let written = write(options, &all, &outcomes, &conditions)?;
    if cli.json {
        output::json(&json!({ "unit": all[0].unit, "plans": outcomes, "mixes": mixes, "written": written }));
        return Ok(());
    }
    print(&all, &outcomes, &conditions);
    for mix in &mixes {
        let [first, second] = [&mix["machines"][0], &mix["machines"][1]];
        let cost = output::or_dash(Some(&mix["cost"]).filter(|cost| !cost.is_null()));
        let target = chart::number(mix["target"].as_f64().unwrap_or(0.0));
        let (one, other) = (output::name(&asked[0].name), output::name(&asked[1].name));
        println!("cheapest for {target}: {first} of {one} and {second} of {other}, at {cost}");
    }
    written.iter().for_each(|path| println!("wrote {path}"));
    Ok(())
}

/// One value for each file.
fn prices(options: &VariationPlan) -> Result<Vec<Option<f64>>, Failure> {
    let files = options.files.len();
    if options.price.iter().any(|price| !price.is_finite() || *price < 0.0) {
        return Err(Failure::usage("a price is a number from 0 on"));
    }
    let prices = match options.price.as_slice() {
        [] => vec![None; files],
        [one] => vec![Some(*one); files],
        many if many.len() == files => many.iter().copied().map(Some).collect(),
        many => {
            return Err(Failure::usage(format!("{} prices for {files} files; give one, or one for each", many.len())));
        }
    };
    if options.mix && (files != 2 || prices.contains(&None)) {
        return Err(Failure::usage("--mix needs two files and --price for each"));
    }
    Ok(prices)
}

/// The cheapest fleet of two kinds. The last plans in `outcomes`, one for each file, are those of this question.
fn cheapest(
    options: &VariationPlan,
    question: &Question,
    asked: &[Kind],
    prices: &[Option<f64>],
    outcomes: &[Outcome],
) -> Result<Value, Failure> {
    let alone = outcomes[outcomes.len() - options.files.len()].count;
    let both = (prices[0].unwrap_or(0.0), prices[1].unwrap_or(0.0));
    let mixes = mix::mixes(question, &asked[1], both, alone)?;
    let row = |mix: &mix::Mix| json!({ "machines": [mix.first, mix.second], "cost": mix.cost });
    let found = mix::cheapest(&mixes).ok_or_else(|| Failure::usage("no mix reaches the target"))?;
    Ok(json!({
        "target": question.target,
        "confidence": question.confidence,
        "machines": [found.first, found.second],
        "cost": found.cost,
        "all": mixes.iter().map(row).collect::<Vec<_>>(),
    }))
}

fn write(
    options: &VariationPlan,
    all: &[Series],
    outcomes: &[Outcome],
    conditions: &Conditions,
) -> Result<Vec<String>, Failure> {
    let mut written = Vec::new();
    if let Some(directory) = &options.export {
        let made = std::fs::create_dir_all(directory);
        made.map_err(|error| hekate_variation::error::Error::file("make", directory, error))?;
        written.extend(export::pictures(&outcome::chart(outcomes), directory, "plan")?);
        let json = serde_json::to_vec_pretty(outcomes).unwrap_or_default();
        written.push(export::write(&directory.join("plan.json"), &json)?);
    }
    if let Some(path) = &options.report {
        let mut sections = vec![outcome::section(outcomes, conditions)?];
        sections.extend(report::sections(all)?);
        let page = report::page("How many machines a rate needs", &made(), &sections);
        written.push(export::write(path, page.as_bytes())?);
    }
    Ok(written.iter().map(|path| path.display().to_string()).collect())
}

fn print(all: &[Series], outcomes: &[Outcome], conditions: &Conditions) {
    println!("rates in {}, machines independent but for what is said here", all[0].unit);
    outcome::conditions_text(conditions).iter().for_each(|words| println!("{words}"));
    println!();
    let heads = Outcome::HEADS.map(str::to_uppercase);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    output::table(&heads, &outcomes.iter().map(Outcome::row).collect::<Vec<_>>());
    for outcome in outcomes {
        let confidence = outcome::percent(outcome.confidence);
        println!("\n{}, {} with {confidence}:", output::name(&outcome.kind), outcome.target);
        outcome.lines().iter().for_each(|line| println!("  {line}"));
    }
    for series in all {
        series.notes.iter().for_each(|note| println!("{}: {note}", output::name(&series.name)));
    }
}
