from ._encode import (
    Encoded as Encoded,
    Split as Split,
    encode_reviews as encode_reviews,
    official_split as official_split,
    random_split as random_split,
    stratified_split as stratified_split,
)
from ._explain import (
    Explanation as Explanation,
    Leading as Leading,
    explain as explain,
)
from ._loss import (
    Fitted as Fitted,
    accuracy as accuracy,
    fit as fit,
    start as start,
    train_encoded as train_encoded,
)
from ._model import HardmaxClassifier as HardmaxClassifier, Recipe as Recipe, predict_logits as predict_logits
from ._released import load_released as load_released
from ._report import (
    Evaluation as Evaluation,
    Leader as Leader,
    LeadersReport as LeadersReport,
    evaluate as evaluate,
    leaders_report as leaders_report,
)
from ._reviews import (
    Reviews as Reviews,
    SyntheticReviews as SyntheticReviews,
    load_imdb as load_imdb,
    load_reviews as load_reviews,
    load_texts as load_texts,
    synthetic_reviews as synthetic_reviews,
)
from ._store import load as load, load_report as load_report, save as save
from ._text import TextOptions as TextOptions
from ._train import train_sentiment as train_sentiment
from ._vocabulary import Vocabulary as Vocabulary
