//! Line charts as SVG, coloured by the page they stand in.

use std::fmt::Write as _;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 46.0;

/// One line.
#[derive(Debug, Clone)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// Class that gives the colour.
    pub class: &'static str,
    /// SVG dash pattern; empty for a solid line.
    pub dash: &'static str,
    /// A value for each place on the x axis.
    pub values: Vec<Option<f64>>,
}

/// Lines over the same places.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Above the chart.
    pub title: String,
    /// Below the x axis.
    pub x_title: &'static str,
    /// Beside the y axis.
    pub y_title: &'static str,
    /// Names of the places on the x axis.
    pub x: Vec<String>,
    /// The y axis is logarithmic.
    pub logarithmic: bool,
    /// The lines.
    pub series: Vec<Series>,
}

/// The y axis.
struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    logarithmic: bool,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64> + Clone, logarithmic: bool) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        if logarithmic {
            let least = values.filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
            let (low, high) = if least.is_finite() { (least, most) } else { (1.0, 10.0) };
            let low = 10f64.powf(low.log10().floor());
            let high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
            let mut ticks = vec![low];
            let mut tick = low;
            while tick < high * 0.99 && ticks.len() < 16 {
                tick *= 10.0;
                ticks.push(tick);
            }
            return Self { low, high, ticks, logarithmic };
        }
        let most = if most > 0.0 { most } else { 1.0 };
        let raw = most / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= raw).unwrap_or(raw);
        let count = (most / step).ceil().max(1.0);
        let mut ticks = Vec::new();
        let mut n = 0.0;
        while n <= count {
            ticks.push(n * step);
            n += 1.0;
        }
        Self { low: 0.0, high: count * step, ticks, logarithmic }
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            let (low, high) = (self.low.log10(), self.high.log10());
            (value.max(self.low).log10() - low) / (high - low)
        } else {
            (value - self.low) / (self.high - self.low)
        };
        TOP + (1.0 - share) * (HEIGHT - TOP - BOTTOM)
    }
}

/// A number on an axis.
fn tick(value: f64) -> String {
    let short = |n: f64| if n.fract() == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") };
    match value {
        v if v >= 1e6 => format!("{} M", short(v / 1e6)),
        v if v >= 1e3 => format!("{} K", short(v / 1e3)),
        v if v == 0.0 || v.fract() == 0.0 => format!("{v:.0}"),
        v if v >= 0.1 => format!("{v:.2}").trim_end_matches('0').to_owned(),
        v => format!("{v}"),
    }
}

/// Text that means itself in HTML, attributes included.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Chart {
    #[allow(clippy::cast_precision_loss)] // Places on a screen.
    fn x(&self, index: usize) -> f64 {
        let room = WIDTH - LEFT - RIGHT;
        LEFT + room * (index as f64 + 0.5) / self.x.len().max(1) as f64
    }

    /// The chart with its title and legend, for a page with [`html::STYLE`](crate::html::STYLE).
    #[must_use]
    pub fn render(&self) -> String {
        let values = self.series.iter().flat_map(|s| s.values.iter().flatten().copied());
        let scale = Scale::new(values, self.logarithmic);
        let mut svg = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title),
            escape(&self.title)
        );
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for value in &scale.ticks {
            let y = scale.y(*value);
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                tick(*value)
            );
        }
        for (index, name) in self.x.iter().enumerate() {
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.x(index),
                bottom + 18.0,
                escape(name)
            );
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>\
             <text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, right),
            HEIGHT - 8.0,
            escape(self.x_title),
            f64::midpoint(TOP, bottom),
            escape(self.y_title)
        );
        for series in &self.series {
            self.line(&mut svg, &scale, series);
        }
        svg.push_str("</svg><ul class=\"legend\">");
        for Series { name, class, dash, .. } in &self.series {
            let _ = write!(
                svg,
                "<li><svg class=\"key\" viewBox=\"0 0 30 10\"><line class=\"{class}\" stroke-dasharray=\"{dash}\" \
                 x1=\"0\" y1=\"5\" x2=\"30\" y2=\"5\"/></svg>{}</li>",
                escape(name)
            );
        }
        svg.push_str("</ul></figure>");
        svg
    }

    fn line(&self, svg: &mut String, scale: &Scale, series: &Series) {
        let places: Vec<_> = series
            .values
            .iter()
            .enumerate()
            .filter_map(|(index, value)| value.map(|value| (self.x(index), scale.y(value), index, value)))
            .collect();
        let points: Vec<_> = places.iter().map(|(x, y, ..)| format!("{x:.1},{y:.1}")).collect();
        let _ = write!(
            svg,
            "<polyline class=\"{}\" stroke-dasharray=\"{}\" points=\"{}\"/>",
            series.class,
            series.dash,
            points.join(" ")
        );
        for (x, y, index, value) in places {
            let at = self.x.get(index).map_or("", String::as_str);
            let _ = write!(
                svg,
                "<circle class=\"{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{} {}: {}, {}</title></circle>",
                series.class,
                escape(self.x_title),
                escape(at),
                escape(&series.name),
                crate::table::micros(value),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_all_values_and_have_round_ticks() {
        let scale = Scale::new([3.0, 870_000.0].into_iter(), false);
        assert_eq!((scale.low, scale.high), (0.0, 1_000_000.0));
        assert_eq!(scale.ticks.len(), 6);
        let scale = Scale::new([0.7, 2300.0].into_iter(), true);
        assert!((scale.low - 0.1).abs() < 1e-9 && (scale.high - 10_000.0).abs() < 1e-6);
        for values in [vec![], vec![0.0], vec![1e-9], vec![5.0]] {
            for logarithmic in [false, true] {
                let scale = Scale::new(values.iter().copied(), logarithmic);
                assert!(values.iter().all(|v| scale.y(*v).is_finite()), "{values:?}");
                assert!(scale.ticks.len() >= 2, "{values:?}");
            }
        }
    }

    #[test]
    fn ticks_read_well() {
        let texts: Vec<_> = [0.0, 0.25, 0.5, 20.0, 2500.0, 1e6, 0.01].into_iter().map(tick).collect();
        assert_eq!(texts, ["0", "0.25", "0.5", "20", "2.5 K", "1 M", "0.01"]);
    }
}
