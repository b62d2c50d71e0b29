"""Slice ``multilingual``: ten European languages and Japanese; three scripts are not Latin.

The model's tokenizer cuts such text into short pieces, and a draft vocabulary trimmed to frequent
English tokens lacks many of them: both lower acceptance.
"""

from __future__ import annotations

from gatekeeper.workloads.chat import Prompt, chat

__all__ = ["build"]

_ASKED: dict[str, tuple[tuple[str, str], ...]] = {
    "de": (
        (
            "ferry",
            "Schreibe eine kurze Nachricht an eine Freundin: Die Fähre fährt wegen Sturm erst morgen, das Abendessen fällt aus, und du bringst dafür Kuchen mit.",
        ),
        (
            "thunder",
            "Warum sieht man den Blitz, bevor man den Donner hört? Erkläre es einem Kind in drei Sätzen.",
        ),
        (
            "bridge",
            "Übersetze ins Englische: Die alte Brücke wurde gesperrt, weil zwei Bretter fehlten. Seitdem trägt der Müller seine Säcke durch das Wasser.",
        ),
    ),
    "fr": (
        (
            "bakery",
            "Décris en quelques phrases l'ouverture d'une petite boulangerie de village un matin de janvier.",
        ),
        (
            "time-zones",
            "Explique simplement pourquoi il n'est pas la même heure à Lisbonne et à Helsinki.",
        ),
        (
            "postman",
            "Résume en une phrase : Le facteur a oublié une lettre au fond de son sac pendant trente ans. Quand il l'a enfin remise, les deux anciens voisins habitaient de nouveau la même rue.",
        ),
    ),
    "es": (
        (
            "recipe",
            "Escribe la receta de una sopa fría de verano con pepino y yogur, en cinco pasos numerados.",
        ),
        (
            "river",
            "Continúa el cuento: La noche en que el río cambió de camino, la abuela ya había puesto la mesa al otro lado.",
        ),
        (
            "library",
            "Corrige los errores y devuelve el texto completo: Ayer yo fue a la biblioteca para devolver los libro, pero estaba cerrado y tube que volver hoy.",
        ),
    ),
    "it": (
        (
            "neighbour",
            "Scrivi un biglietto gentile al vicino che suona il trombone dopo le undici di sera.",
        ),
        (
            "glass",
            "Come si ricicla il vetro, dalla campana alla bottiglia nuova? Rispondi in quattro frasi.",
        ),
        (
            "baking-list",
            "Metti in ordine alfabetico e numera: mandorle, farina, burro, limone, zucchero, uova, cannella.",
        ),
    ),
    "pt": (
        (
            "tram",
            "Conta uma história curta sobre um elétrico que parou numa rua onde não havia carris.",
        ),
        (
            "tide",
            "Por que motivo algumas praias quase desaparecem na maré cheia? Responde de forma simples.",
        ),
        (
            "watchmaker",
            "Traduz para inglês: O relojoeiro vendeu o último relógio da loja e, pela primeira vez em quarenta anos, chegou atrasado a casa.",
        ),
    ),
    "nl": (
        (
            "bicycle",
            "Schrijf een advertentie voor een tweedehands fiets met een krakend zadel en een heel goede bel.",
        ),
        ("dike", "Leg in eenvoudige woorden uit waarom een dijk onderaan breder is dan bovenaan."),
        (
            "diary",
            "Maak van deze zin een lijst met tijd en afspraak: Om negen uur tandarts, om half elf koffie met Joris, om twee uur de markt en om vijf uur de kinderen ophalen.",
        ),
    ),
    "pl": (
        (
            "forest",
            "Opisz jesienny las o świcie oczami dziecka, które pierwszy raz zbiera grzyby.",
        ),
        ("ice", "Dlaczego lód pływa po wodzie, a nie tonie? Wyjaśnij to w trzech zdaniach."),
        (
            "train",
            "Przetłumacz na angielski: Pociąg do Gdyni odjechał dwie minuty za wcześnie, więc na peronie zostało nas siedmioro i jeden kanarek.",
        ),
    ),
    "sv": (
        (
            "cabin",
            "Skriv tre ordningsregler för en lånad stuga vid havet, vänliga men tydliga.",
        ),
        ("aurora", "Vad är norrsken, och varför syns det nästan bara långt norrut?"),
        (
            "moose",
            "Fortsätt berättelsen: Postlådan stod mitt i skogen, och varje måndag låg där ett brev till älgen.",
        ),
    ),
    "ru": (
        (
            "lighthouse",
            "Продолжи рассказ: Смотритель маяка каждый вечер писал одно и то же слово, но в тот день чернила кончились.",
        ),
        (
            "snow",
            "Почему снег скрипит под ногами в сильный мороз? Ответь в двух-трёх предложениях.",
        ),
        (
            "librarian",
            "Переведи на английский: Библиотекарь знал все книги по запаху и никогда не ошибался, кроме как весной.",
        ),
    ),
    "el": (
        (
            "harbour",
            "Περιέγραψε με λίγα λόγια ένα μικρό καφενείο στο λιμάνι την ώρα που φεύγει το τελευταίο πλοίο.",
        ),
        ("olive", "Γιατί μια ελιά μπορεί να ζήσει εκατοντάδες χρόνια; Απάντησε απλά."),
        (
            "shopping",
            "Γράψε τα παρακάτω σε αριθμημένη λίστα: ψωμί, ντομάτες, τυρί, ρίγανη, λάδι, αγγούρια.",
        ),
    ),
    "ja": (
        ("umbrella", "傘を電車に忘れた人が駅に送る短い手紙を書いてください。"),
        ("moon", "月はなぜ形が変わって見えるのですか。子どもにもわかるように説明してください。"),
        (
            "clocks",
            "英語に訳してください。古い時計屋の窓には、いつも違う時間を指す時計が七つ並んでいた。",
        ),
    ),
}


def build() -> tuple[Prompt, ...]:
    """Return three prompts a language; the id names language and subject."""
    return tuple(
        Prompt(f"multilingual-{language}-{name}", "multilingual", chat([("user", text)]))
        for language, asked in _ASKED.items()
        for name, text in asked
    )
